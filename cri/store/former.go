package store

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
)

// Former versions kept the records in a bbolt file: pages of a B+tree. It is read here once, by bounds that each number
// in it is held to, since such a file may be torn, too: whatever is wrong with a page costs what is in and below it.

const (
	boltMagic  = 0xED0CDAED
	boltHeader = 16 // of a page: id, flags, count, overflow
	boltMeta   = 64 // what follows it in a meta page
	boltBranch = 1
	boltLeaf   = 2
	boltBucket = 1 // flag of an element
	boltDepth  = 64
)

var boltOrder = binary.LittleEndian

// formerFile is such a file.
type formerFile struct {
	data []byte
	page uint64
	seen map[uint64]bool
	bad  int
}

// boltRoot finds the page size and the root of the newest of the two meta pages that has its checksum.
func boltRoot(data []byte) (page, root uint64, is bool) {
	var newest uint64
	for _, size := range []uint64{0, 1 << 12, 1 << 13, 1 << 14, 1 << 15, 1 << 16} { // the second is one page further
		if uint64(len(data)) < size+boltHeader+boltMeta {
			break
		}
		m := data[size+boltHeader:][:boltMeta]
		if boltOrder.Uint32(m) != boltMagic {
			continue
		}
		is = true
		h := fnv.New64a()
		_, _ = h.Write(m[:56]) // never fails
		tx, has := boltOrder.Uint64(m[48:]), uint64(boltOrder.Uint32(m[8:]))
		if h.Sum64() != boltOrder.Uint64(m[56:]) || has < 1<<9 || has > 1<<16 || page != 0 && tx < newest {
			continue
		}
		newest, page, root = tx, has, boltOrder.Uint64(m[16:])
	}
	return page, root, is
}

// parseAny reads a file of whichever kind. rebuild says that it is to be written again as one of ours.
func parseAny(data []byte) (c content, rebuild bool, err error) {
	page, root, is := boltRoot(data)
	if !is {
		c, err = parse(data)
		return c, false, err
	}
	c = content{latest: map[id]change{}}
	if page == 0 {
		return c, true, fmt.Errorf("%w: neither of its first pages is whole", errDamaged)
	}
	f := &formerFile{data: data, page: page, seen: map[uint64]bool{}}
	f.walk(root, 0, func(flags uint32, table, v []byte) {
		if flags&boltBucket == 0 || !validTable(string(table)) {
			f.bad++
			return
		}
		f.bucket(v, func(flags uint32, key, value []byte) {
			if flags&boltBucket != 0 || len(value) == 0 || !validValue(value) {
				f.bad++
				return
			}
			c.seq++
			c.add(change{seq: c.seq, table: string(table), key: string(key), value: value})
		})
	})
	if f.bad > 0 {
		return c, true, fmt.Errorf("%w: %d of its pages or records", errDamaged, f.bad)
	}
	return c, true, nil
}

// bucket yields what is in a bucket: below a page, or, when it is small, beside its head.
func (f *formerFile) bucket(v []byte, yield func(flags uint32, key, value []byte)) {
	if len(v) < 16 {
		f.bad++
		return
	}
	if root := boltOrder.Uint64(v); root != 0 {
		f.walk(root, 1, yield)
		return
	}
	f.leaf(v[16:], yield)
}

// walk yields the elements of the leaves below a page, each of which is visited once.
func (f *formerFile) walk(at uint64, depth int, yield func(flags uint32, key, value []byte)) {
	p, ok := f.at(at)
	if !ok || f.seen[at] || depth > boltDepth {
		f.bad++
		return
	}
	f.seen[at] = true
	switch boltOrder.Uint16(p[8:]) {
	case boltLeaf:
		f.leaf(p, yield)
	case boltBranch:
		for i := range int(boltOrder.Uint16(p[10:])) {
			e := boltHeader + i*16
			if e+16 > len(p) {
				f.bad++
				return
			}
			f.walk(boltOrder.Uint64(p[e+8:]), depth+1, yield)
		}
	default:
		f.bad++
	}
}

// at is a page with those that belong to it.
func (f *formerFile) at(n uint64) ([]byte, bool) {
	pages := uint64(len(f.data)) / f.page
	if n < 2 || n >= pages {
		return nil, false
	}
	p := f.data[n*f.page:]
	more := uint64(boltOrder.Uint32(p[12:]))
	if boltOrder.Uint64(p) != n || more >= pages-n {
		return nil, false
	}
	return p[:(more+1)*f.page], true
}

func (f *formerFile) leaf(p []byte, yield func(flags uint32, key, value []byte)) {
	if len(p) < boltHeader || boltOrder.Uint16(p[8:]) != boltLeaf {
		f.bad++
		return
	}
	for i := range int(boltOrder.Uint16(p[10:])) {
		e := boltHeader + i*16
		if e+16 > len(p) {
			f.bad++
			return
		}
		pos := uint64(e) + uint64(boltOrder.Uint32(p[e+4:]))
		key := pos + uint64(boltOrder.Uint32(p[e+8:]))
		end := key + uint64(boltOrder.Uint32(p[e+12:]))
		if end > uint64(len(p)) {
			f.bad++
			continue
		}
		yield(boltOrder.Uint32(p[e:]), p[pos:key], p[key:end])
	}
}
