package main

import (
	"cmp"
	"debug/buildinfo"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A bill of materials of CycloneDX, version 1.6: what is in the programs, by what the linker has noted in each.
type (
	bom struct {
		Format   string      `json:"bomFormat"`
		Spec     string      `json:"specVersion"`
		Version  int         `json:"version"`
		Metadata bomMetadata `json:"metadata"`
		All      []component `json:"components"`
	}
	bomMetadata struct {
		Timestamp string    `json:"timestamp"`
		Component component `json:"component"`
	}
	component struct {
		Type       string     `json:"type"`
		Name       string     `json:"name"`
		Version    string     `json:"version"`
		PURL       string     `json:"purl,omitempty"`
		Properties []property `json:"properties,omitempty"`
	}
	property struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
)

const helper = "berth-helper"

// cLibraries are linked into the helper, which has no note of them.
var cLibraries = []string{"libc", "libseccomp"}

func (j *job) bill(programs ...string) ([]byte, error) {
	type id struct{ kind, name, version, purl string }
	by := map[id][]string{}
	for _, path := range programs {
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			return nil, err
		}
		name := filepath.Base(path)
		release := strings.TrimPrefix(info.GoVersion, "go")
		std := id{"library", "std", release, "pkg:golang/std@" + release}
		by[std] = append(by[std], name)
		for _, d := range info.Deps {
			// One of a directory has no name of its own: it is what packaging/trim has left of the module.
			if d.Replace != nil && !strings.HasPrefix(d.Replace.Path, "./") {
				d = d.Replace
			}
			k := id{"library", d.Path, d.Version, "pkg:golang/" + d.Path + "@" + d.Version}
			by[k] = append(by[k], name)
		}
	}
	if slices.ContainsFunc(programs, func(path string) bool { return filepath.Base(path) == helper }) {
		for _, lib := range cLibraries {
			by[id{"library", lib, "", ""}] = []string{helper}
		}
	}
	out := bom{
		Format: "CycloneDX", Spec: "1.6", Version: 1,
		Metadata: bomMetadata{j.time.Format(time.RFC3339), component{Type: "application", Name: j.product.name, Version: j.release()}},
	}
	for k, in := range by {
		c := component{Type: k.kind, Name: k.name, Version: k.version, PURL: k.purl}
		for _, name := range in {
			c.Properties = append(c.Properties, property{"berth:program", name})
		}
		out.All = append(out.All, c)
	}
	slices.SortFunc(out.All, func(a, b component) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Version, b.Version))
	})
	data, err := json.MarshalIndent(out, "", "\t")
	return append(data, '\n'), err
}
