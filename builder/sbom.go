package builder

import (
	"bytes"
	"fmt"
	"path"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/package-url/packageurl-go"

	"github.com/mesh-control/mesh/builder/archive"
	"github.com/mesh-control/mesh/builder/toolchain"
	"github.com/mesh-control/mesh/schema"
)

// sbomVersion of CycloneDX is what tools of today read.
const sbomVersion = cdx.SpecVersion1_6

// sbom lists what a bundle was made of. The same commit gives the same bytes: the one time in
// it is the commit's, and it has no serial number.
func (r *run) sbom(s step, source []archive.Entry, product toolchain.Product, built schema.Built) ([]byte, error) {
	parts, err := toolchain.Components(s.language, source, product)
	if err != nil {
		return nil, compileFailure(err)
	}
	bom := cdx.NewBOM()
	bom.SpecVersion = sbomVersion
	bom.Metadata = &cdx.Metadata{
		Timestamp: r.clone.CommittedAt.UTC().Format(time.RFC3339),
		Component: &cdx.Component{
			BOMRef: "bundle", Type: cdx.ComponentTypeApplication, Group: r.module.Name, Name: s.name, Version: r.clone.Commit,
			Hashes: &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: strings.TrimPrefix(built.Digest, "sha256:")}},
		},
	}
	components := make([]cdx.Component, 0, len(parts))
	for _, part := range parts {
		components = append(components, component(part))
	}
	bom.Components = &components
	var out bytes.Buffer
	if err := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetEscapeHTML(false).EncodeVersion(bom, sbomVersion); err != nil {
		return nil, fmt.Errorf("write the list of what %s was made of: %w", s.name, err)
	}
	return out.Bytes(), nil
}

func component(part toolchain.Component) cdx.Component {
	purl := packageurl.NewPackageURL(part.Type, part.Namespace, part.Name, part.Version, nil, "").ToString()
	c := cdx.Component{
		BOMRef: purl, PackageURL: purl, Type: cdx.ComponentTypeLibrary, Name: part.Name, Version: part.Version, Scope: cdx.ScopeRequired,
	}
	switch part.Type {
	case packageurl.TypeGolang: // whose modules are known by their whole path
		c.Name = path.Join(part.Namespace, part.Name)
	default:
		c.Group = part.Namespace
	}
	if part.BuildOnly {
		c.Scope = cdx.ScopeExcluded
	}
	var hashes []cdx.Hash
	if part.SHA256 != "" {
		hashes = append(hashes, cdx.Hash{Algorithm: cdx.HashAlgoSHA256, Value: part.SHA256})
	}
	if part.SHA512 != "" {
		hashes = append(hashes, cdx.Hash{Algorithm: cdx.HashAlgoSHA512, Value: part.SHA512})
	}
	if hashes != nil {
		c.Hashes = &hashes
	}
	return c
}
