package main

import (
	"errors"
	"slices"
	"strings"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// A stage goes to init as strings, each with a NUL behind it, five for each of
// its parts. encoding/json would look at all types first, in every init again,
// for longer than the strings take.
const stagePart = 5

func (st *stage) encode() []byte {
	var b strings.Builder
	part := func(s ...string) {
		for i := range stagePart {
			if i < len(s) {
				b.WriteString(s[i])
			}
			b.WriteByte(0)
		}
	}
	mount := func(kind string, m specs.Mount) {
		part(kind, m.Destination, m.Type, m.Source, strings.Join(m.Options, ","))
	}
	part("dir", st.Dir)
	if st.Dev != nil {
		mount("dev", *st.Dev)
	}
	for _, m := range st.OnDev {
		mount("ondev", m)
	}
	for _, m := range st.Root {
		mount("root", m)
	}
	if st.Cgroup != nil {
		mount("cgroup", *st.Cgroup)
	}
	for _, t := range st.Trees {
		part("tree", t.Mountpoint, t.Root, strings.Join(t.Subsystems, ","))
	}
	return []byte(b.String())
}

func decodeStage(b []byte) (stage, error) {
	var st stage
	all := strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
	if len(all)%stagePart != 0 {
		return st, errors.New("decode stage: it is cut off")
	}
	for s := range slices.Chunk(all, stagePart) {
		m := specs.Mount{Destination: s[1], Type: s[2], Source: s[3], Options: strings.Split(s[4], ",")}
		switch s[0] {
		case "dir":
			st.Dir = s[1]
		case "dev":
			st.Dev = &m
		case "ondev":
			st.OnDev = append(st.OnDev, m)
		case "root":
			st.Root = append(st.Root, m)
		case "cgroup":
			st.Cgroup = &m
		case "tree":
			st.Trees = append(st.Trees, cgroups.Mount{
				Mountpoint: s[1], Root: s[2], Subsystems: strings.Split(s[3], ","),
			})
		default:
			return st, errors.New("decode stage: a part of it is unknown: " + s[0])
		}
	}
	return st, nil
}
