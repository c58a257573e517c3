package toolchain

import (
	"path"
	"runtime"
	"strings"

	"github.com/mesh-control/mesh/builder/archive"
)

var rust = language{
	file: "Cargo.toml", caches: []string{"cargo"}, path: []string{"/usr/local/cargo/bin", "/usr/local/bin"},
	asks:  [][]string{{"rustc", "--version"}, {"cc", "-dumpfullversion"}},
	parse: func(lines []string) (string, error) { return labelled(lines, "rustc", "cc") },
	plan:  planRust,

	components: rustComponents,
}

// rustTarget is named although it is the compiler's own: only then are procedural macros,
// which run while compiling, spared the flags of what is shipped.
func rustTarget() string {
	if runtime.GOARCH == "arm64" {
		return "aarch64-unknown-linux-gnu"
	}
	return "x86_64-unknown-linux-gnu"
}

func planRust(src source, c Compilation, at place) (*job, error) {
	if !src.has("Cargo.lock") {
		return nil, fail(ReasonNotLocked, "run cargo generate-lockfile and commit Cargo.lock", "there is no Cargo.lock beside Cargo.toml")
	}
	vendored := src.beneath("vendor")
	home := at.cache("cargo")
	if vendored {
		home = path.Join(at.home, "cargo")
	}
	flags := []string{
		"-Ctarget-feature=+crt-static", "-Cstrip=symbols", "-Clink-arg=-Wl,--build-id=none",
		"--remap-path-prefix=" + at.src + "=/src", "--remap-path-prefix=" + home + "=/cargo", "--remap-path-prefix=" + at.tmp + "=/tmp",
	}
	env := []string{
		"CARGO_HOME=" + home, "CARGO_TARGET_DIR=" + path.Join(at.tmp, "target"), "CARGO_INCREMENTAL=0", "CARGO_TERM_COLOR=never",
		"CARGO_ENCODED_RUSTFLAGS=" + strings.Join(flags, "\x1f"),
	}
	if at.certificates != "" {
		env = append(env, "CARGO_HTTP_CAINFO="+at.certificates)
	}
	j := &job{
		collect: path.Join(at.out, "bin"), runsCode: "build scripts and procedural macros of its crates, if it has any",
		finish: func(collected []archive.Entry) (Product, error) {
			return programs(collected, `set "package" to the directory of a crate with a program`, "the crate has no program")
		},
	}
	config := []string{"--config", "net.offline=true"}
	if vendored {
		config = append(config, "--config", `source.crates-io.replace-with="vendored-sources"`, "--config", `source.vendored-sources.directory="`+path.Join(at.src, "vendor")+`"`)
	} else {
		args := []string{"cargo", "fetch", "--locked", "--target", rustTarget()}
		if at.proxy != "" {
			args = append(args, "--config", `source.crates-io.replace-with="mirror"`, "--config", `source.mirror.registry="`+at.proxy+`"`)
			config = append(config, args[len(args)-4:]...)
		}
		j.steps = append(j.steps, step{what: "fetch dependencies", args: args, env: env, network: true, caches: true})
	}
	install := []string{
		"cargo", "install", "--path", path.Join(at.src, c.Package), "--root", at.out, "--no-track",
		"--locked", "--target", rustTarget(),
	}
	j.steps = append(j.steps, step{what: "compile", args: append(install, config...), env: env})
	return j, nil
}
