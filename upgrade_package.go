package main

import (
	"context"
	"path/filepath"
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

// versionOfPackage is what a package file says of itself; "" when it says nothing.
func versionOfPackage(ctx context.Context, r *release.Release) string {
	call := programs.Call{Name: "dpkg-deb", Args: []string{"--field", r.File, "Version"}, Deadline: packagerPatience}
	if r.Kind == release.RPM {
		call = programs.Call{Name: "rpm", Args: []string{"--query", "--queryformat", "%{VERSION}", "--package", r.File}, Deadline: packagerPatience}
	}
	out, err := call.Run(ctx)
	if err != nil {
		return "" // who installs it says what is wrong with it
	}
	return strings.TrimSpace(out.Out)
}

// keepPackage makes a package of what dpkg has installed, by which the version of now can be installed again.
func keepPackage(ctx context.Context, dir, program string) (string, error) {
	p := repack.Find(ctx, "/", packageName)
	if p == nil {
		return "", nil // the files are somebody else's
	}
	return p.Make(ctx, program, dir)
}
