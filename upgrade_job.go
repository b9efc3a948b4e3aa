package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-node/berth/install/release"
	"github.com/berth-node/berth/install/upgrade"
	programs "github.com/berth-node/berth/internal/command"
)

// job says which files are replaced.
func (u *upgrading) job(ctx context.Context, t *target, r *release.Release, stage string) (upgrade.Job, error) {
	j := upgrade.Job{From: versionOf(ctx, t.programs["berth"], "berth")}
	if r.Kind == release.Deb || r.Kind == release.RPM {
		if !t.packaged {
			return j, fmt.Errorf("berth is here without a package (%s): upgrade it by a tar.gz, or take it away first", t.programs["berth"])
		}
		var err error
		j.Package, j.Files = r.File, packagedFiles(t.programs)
		j.To, err = lookAtPackage(ctx, r)
		return j, err
	}
	if t.packaged {
		return j, fmt.Errorf("%s is of a package: upgrade it by a .deb or .rpm", t.programs["berth"])
	}
	var err error
	if j.To, err = sameVersion(ctx, r.Dir); err != nil {
		return j, err
	}
	if t.in == nil {
		j.Files = only(r.Dir, t.programs)
	} else if j.Files, err = laidOut(ctx, r.Dir, filepath.Join(stage, "tree"), t.in.Args); err != nil {
		return j, err
	}
	last := func(f upgrade.File) int {
		if f.Path == t.programs["berth"] {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(j.Files, func(a, b upgrade.File) int { return last(a) - last(b) })
	return j, nil
}

// only are the programs alone.
func only(dir string, to map[string]string) []upgrade.File {
	var out []upgrade.File
	for _, name := range release.Programs {
		from := filepath.Join(dir, name)
		if _, err := os.Stat(from); err == nil {
			out = append(out, upgrade.File{Path: to[name], From: from, Mode: 0o755})
		}
	}
	return out
}

// laidOut are all files of an installation, as the new version makes them: units, manual and completions are its own.
func laidOut(ctx context.Context, dir, tree string, args []string) ([]upgrade.File, error) {
	words := append([]string{"install", "--destdir", tree, "--from", dir, "--"}, args...)
	call := programs.Call{Name: filepath.Join(dir, "berth"), Args: words, Deadline: servicePatience}
	if _, err := call.Run(ctx); err != nil {
		return nil, fmt.Errorf("have the new version lay out its files: %w", err)
	}
	var out []upgrade.File
	err := filepath.WalkDir(tree, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		st, err := d.Info()
		if err == nil {
			out = append(out, upgrade.File{Path: strings.TrimPrefix(path, tree), From: path, Mode: st.Mode().Perm()})
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read what the new version lays out: %w", err)
	}
	return out, nil
}

// versionOf is what a program says of itself; "" when it says nothing.
func versionOf(ctx context.Context, path, name string) string {
	out, err := programs.Call{Name: path, Args: []string{"version"}, Deadline: helperPatience}.Run(ctx)
	if err != nil {
		return ""
	}
	version, _ := strings.CutPrefix(strings.TrimSpace(out.Out), name+" ")
	return version
}

// sameVersion is the version of both programs, which run on this machine.
func sameVersion(ctx context.Context, dir string) (string, error) {
	berth := versionOf(ctx, filepath.Join(dir, "berth"), "berth")
	helper := versionOf(ctx, filepath.Join(dir, "berth-helper"), "berth-helper")
	if berth == "" || berth != helper {
		return "", fmt.Errorf("the programs of the release are of versions %q and %q: must be one, and must run here", berth, helper)
	}
	return berth, nil
}
