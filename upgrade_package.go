package main

import (
	"context"
	"fmt"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"time"

	"github.com/berth-node/berth/install"
	"github.com/berth-node/berth/install/release"
	"github.com/berth-node/berth/install/repack"
	"github.com/berth-node/berth/install/upgrade"
	programs "github.com/berth-node/berth/internal/command"
	"github.com/berth-node/berth/systemd"
)

// packageName is what dpkg and rpm know berth by, and packagerPatience how long they may take to say something of a
// file.
const (
	packageName      = "berth"
	packagerPatience = time.Minute
)

// packagedFiles are what a package replaces that the way back needs: the programs, of which berth comes last, and the
// units that start them. All else of a package goes back only by the packager.
func packagedFiles(programs map[string]string) []upgrade.File {
	var out []upgrade.File
	for _, unit := range []string{systemd.AgentName, systemd.RuntimeName, systemd.SliceName} {
		out = append(out, upgrade.File{Path: filepath.Join(install.Packaged().Units, unit), Mode: 0o644})
	}
	for _, name := range slices.Backward(release.Programs) {
		out = append(out, upgrade.File{Path: programs[name], Mode: 0o755})
	}
	return out
}

// lookAtPackage holds a package file to what its packager holds it to, while the agent still runs, and returns its
// version: it is berth, for this machine, and whole.
func lookAtPackage(ctx context.Context, r *release.Release) (version string, err error) {
	tool, show := "dpkg-deb", []string{"--show", "--showformat", "${Package} ${Version} ${Architecture}", r.File}
	arch, whole := goruntime.GOARCH, []string{"--contents", r.File} // Debian's names of machines are Go's
	if r.Kind == release.RPM {
		tool, show = "rpm", []string{"--query", "--queryformat", "%{NAME} %{VERSION} %{ARCH}", "--package", r.File}
		arch, whole = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[arch], []string{"--checksig", "--nosignature", r.File}
	}
	out, err := programs.Call{Name: tool, Args: show, Deadline: packagerPatience}.Run(ctx)
	if err != nil {
		return "", fmt.Errorf("look at package: %w", err)
	}
	words := strings.Fields(out.Out)
	switch {
	case len(words) != 3:
		return "", fmt.Errorf("look at package: %s says %q of it", tool, out.Out)
	case words[0] != packageName:
		return "", fmt.Errorf("it is a package of %s, not of %s", words[0], packageName)
	case words[2] != arch:
		return "", fmt.Errorf("it is a package for another machine (%s, and this is %s)", words[2], arch)
	}
	if _, err := (programs.Call{Name: tool, Args: whole, Deadline: packagerPatience}).Run(ctx); err != nil {
		return "", fmt.Errorf("look at what the package has: %w", err)
	}
	return words[1], nil
}

// keepPackage makes a package of what dpkg has installed, by which the version of now can be installed again.
func keepPackage(ctx context.Context, dir, program string) (string, error) {
	p := repack.Find(ctx, "/", packageName)
	if p == nil {
		return "", nil // the files are somebody else's
	}
	return p.Make(ctx, program, dir)
}
