// Command licences lists the licence of every module that berth's programs are linked from, and fails for one that is
// not known to allow that, or whose text cannot be had.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

// programs are what is linked, with the tags that they are built with.
var programs = [][]string{{"-tags", "grpcnotrace", "."}, {"./cri/wasm"}, {"-tags", "seccomp,osusergo,netgo", "./cri/helper"}}

// licences are those that are known to allow linking, by words that their texts have; the first that fits counts.
var licences = []struct {
	name  string
	words []string
}{
	{"Apache-2.0", []string{"Apache License", "Version 2.0"}},
	{"MPL-2.0", []string{"Mozilla Public License", "2.0"}},
	{"BSD-3-Clause", []string{"Redistribution and use in source and binary forms", "endorse or promote"}},
	{"BSD-2-Clause", []string{"Redistribution and use in source and binary forms"}},
	{"ISC", []string{"Permission to use, copy, modify, and/or distribute"}},
	{"ISC", []string{"Permission to use, copy, modify, and distribute this software for any"}},
	{"MIT", []string{"Permission is hereby granted, free of charge"}},
	{"Unlicense", []string{"free and unencumbered software released into the public domain"}},
}

type module struct {
	Path, Version, Dir string
	Main               bool
}

func main() {
	if err := run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "licences:", err)
		os.Exit(1)
	}
}

func run(w io.Writer) error {
	all, err := modules()
	if err != nil {
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	var bad []string
	for _, m := range all {
		name, err := licenceOf(m.Dir)
		if err != nil {
			bad = append(bad, fmt.Sprintf("%s %s: %v", m.Path, m.Version, err))
			name = "unknown"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\n", m.Path, m.Version, name)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if len(bad) > 0 {
		return fmt.Errorf("of %d modules these are not known to allow linking:\n%s", len(all), strings.Join(bad, "\n"))
	}
	return nil
}

// modules are those that packages of the programs are of.
func modules() ([]module, error) {
	found := map[string]module{}
	for _, p := range programs {
		cmd := exec.Command("go", append([]string{"list", "-deps", "-json=Module"}, p...)...)
		var said bytes.Buffer
		cmd.Stderr = &said
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("list modules: %w: the modules are not here, and cannot be fetched, so that nothing was audited: %s", err, said.String())
		}
		for d := json.NewDecoder(bytes.NewReader(out)); ; {
			var pkg struct{ Module *module }
			if err := d.Decode(&pkg); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return nil, fmt.Errorf("list modules: %w", err)
			}
			if m := pkg.Module; m != nil && !m.Main {
				found[m.Path] = *m
			}
		}
	}
	out := make([]module, 0, len(found))
	for _, m := range found {
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b module) int { return strings.Compare(a.Path, b.Path) })
	return out, nil
}

// licenceOf tells the licence of a module by its text.
func licenceOf(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", fmt.Errorf("its files are not here: %w", err)
	}
	for _, e := range entries {
		upper := strings.ToUpper(e.Name())
		if e.IsDir() || !strings.HasPrefix(upper, "LICENSE") && !strings.HasPrefix(upper, "LICENCE") && !strings.HasPrefix(upper, "COPYING") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return "", err
		}
		if name := tell(string(text)); name != "" {
			return name, nil
		}
	}
	return "", errors.New("no file has a text that is known")
}

// tell is the licence of a text; "" when it is not known.
func tell(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	for _, l := range licences {
		if !slices.ContainsFunc(l.words, func(w string) bool { return !strings.Contains(text, w) }) {
			return l.name
		}
	}
	return ""
}
