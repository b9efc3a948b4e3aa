package install

import (
	"cmp"
	"path"
	"slices"

	"github.com/berth-node/berth/systemd"
)

// sysusers is where packages have the users that they need.
const sysusers = "/usr/lib/sysusers.d"

// ControlFiles are the files of an installation of the control plane, by path. They are a package of their own.
func (l Layout) ControlFiles(program string, d Documents) []File {
	binary := path.Join(l.Bin, "berth-control")
	unit := systemd.ControlService{Binary: binary, Data: systemd.ControlData}
	out := []File{
		{Path: binary, Mode: 0o755, From: program, What: "the control plane and its commands"},
		{Path: path.Join(l.Units, systemd.ControlName), Mode: 0o644, Data: []byte(unit.Unit()), What: "the control plane's unit"},
		{Path: path.Join(sysusers, "berth-control.conf"), Mode: 0o644, Data: []byte(systemd.ControlUsers()), What: "the user that it runs as"},
		{Path: path.Join(l.Tmpfiles, "berth-control.conf"), Mode: 0o644, Data: []byte(systemd.ControlDirectories()), What: "directories that are made at boot"},
	}
	out = append(out, l.documents(d)...)
	slices.SortFunc(out, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	return out
}
