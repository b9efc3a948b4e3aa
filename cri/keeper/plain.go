package keeper

import (
	"encoding/binary"

	"github.com/berth-node/berth/cri/plain"
)

// Flags of a mount.
const (
	mountDeep        = 1
	mountSpreadBelow = 2
)

// StartsInScopes says whether the keeper's launchers of libcontainer know that a scope of systemd may be there already,
// when an ordinary container is left to them. Those of a keeper that an older version started do not.
func (k *Keeper) StartsInScopes() bool { return k.greeting.version >= 4 }

// plain adds what an ordinary container is made of. What cannot be said is left out altogether: libcontainer tells what
// is wrong with it.
func (f *fields) plain(s *plain.Start) {
	before := len(*f)
	if err := f.program(s.Process, s.Seccomp); err != nil {
		*f = (*f)[:before]
		return
	}
	f.str(tagRoot, s.Root)
	if s.ReadOnly {
		f.u32(tagRootRO, 1)
	}
	for _, n := range s.Join {
		f.bytes(tagNS, append(binary.LittleEndian.AppendUint32(nil, n.Flag), n.Path...))
	}
	for _, m := range s.Mounts {
		f.bytes(tagMount, encodeMount(m))
	}
	for _, t := range s.Trees {
		f.str(tagTree, t.Name+"\x00"+t.Dir)
	}
	for _, p := range s.Masked {
		f.str(tagMasked, p)
	}
	for _, p := range s.ReadPaths {
		f.str(tagReadonly, p)
	}
	for _, p := range s.Procs {
		f.str(tagCgroup, p)
	}
}

func encodeMount(m plain.Mount) []byte {
	var flags uint32
	if m.Deep {
		flags |= mountDeep
	}
	if m.PropagationBelow {
		flags |= mountSpreadBelow
	}
	b := binary.LittleEndian.AppendUint32(nil, uint32(m.Kind))
	b = binary.LittleEndian.AppendUint32(b, flags)
	for _, v := range []uint64{m.Set, m.Clear, m.Below, m.Propagation} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	for _, s := range append([]string{m.Target, m.Source}, m.Data...) {
		b = append(append(b, s...), 0) // in which there is none: such a mount is not ordinary
	}
	return b
}
