package builder

import (
	"errors"
	"fmt"

	"github.com/mesh-control/mesh/builder/clone"
	"github.com/mesh-control/mesh/builder/toolchain"
	"github.com/mesh-control/mesh/schema"
)

// Reason is why a build was not made. Those of packages clone and toolchain come
// beside these.
type Reason = string

// The reasons of a [schema.BuildError].
const (
	ReasonMalformedJob     Reason = "MalformedJob"
	ReasonOtherRecipe      Reason = "OtherRecipe"
	ReasonCredential       Reason = "CredentialUnusable"
	ReasonNoModule         Reason = "ModuleFileNotFound"
	ReasonInvalidModule    Reason = "InvalidModule"
	ReasonOtherModule      Reason = "OtherModule"
	ReasonPathOutside      Reason = "PathOutsideModule"
	ReasonLanguage         Reason = "LanguageUnclear"
	ReasonNoToolchain      Reason = "NoToolchain"
	ReasonNoEngine         Reason = "NoContainerEngine"
	ReasonArchive          Reason = "ArchiveRefused"
	ReasonCompile          Reason = toolchain.ReasonCompile
	ReasonImage            Reason = "ImageBuildFailed"
	ReasonDockerfile       Reason = "InvalidDockerfile"
	ReasonUpstream         Reason = "UpstreamUnavailable"
	ReasonTooLarge         Reason = "ArtifactTooLarge"
	ReasonPublish          Reason = "PublishFailed"
	ReasonDeadline         Reason = "DeadlineExceeded"
	ReasonDiskShort        Reason = "DiskShort"
	ReasonCancelled        Reason = "Cancelled"
	ReasonInternal         Reason = "InternalError"
	ReasonTooManyAttempts  Reason = "TooManyAttempts"
	ReasonWorkingDirectory Reason = "WorkingDirectory"
)

// Failure is an error with its reason and what to do about it. Refused marks what this
// builder will not do, apart from what it tried and could not.
type Failure struct {
	Reason  Reason
	Remedy  string
	Refused bool
	Err     error
}

func (f *Failure) Error() string { return f.Err.Error() }
func (f *Failure) Unwrap() error { return f.Err }

func failed(reason Reason, remedy, format string, args ...any) error {
	return &Failure{Reason: reason, Remedy: remedy, Err: fmt.Errorf(format, args...)}
}

func refused(reason Reason, remedy, format string, args ...any) error {
	return &Failure{Reason: reason, Remedy: remedy, Refused: true, Err: fmt.Errorf(format, args...)}
}

// explain gives what an error means for the result.
func explain(err error) (schema.Outcome, *schema.BuildError) {
	out := &schema.BuildError{Reason: ReasonInternal, Message: err.Error()}
	var f *Failure
	var c *clone.Error
	var t *toolchain.Error
	switch {
	case errors.As(err, &f):
		out.Reason, out.Remedy = f.Reason, f.Remedy
		if f.Refused {
			return schema.OutcomeRefused, out
		}
	case errors.As(err, &t):
		out.Reason, out.Remedy = t.Reason, t.Remedy
		if t.Refused {
			return schema.OutcomeRefused, out
		}
	case errors.As(err, &c):
		out.Reason, out.Remedy = c.Reason, c.Remedy
		if c.Reason == clone.ReasonLocal || c.Reason == clone.ReasonAddress {
			return schema.OutcomeRefused, out
		}
	}
	return schema.OutcomeFailed, out
}
