// Package hashing computes the SHA-256 of several streams at a time.
//
// A pull hashes every byte twice, packed and unpacked, and on a processor without instructions for SHA-256 that is as much
// work as all the rest of it. The layers of an image come side by side, though, and vector registers can take a block of
// each of eight streams in little more time than a block of one. So whoever has something to hash while others have, too,
// does theirs along with its own.
package hashing

import (
	"crypto/sha256"
	"encoding"
	"encoding/binary"
	"hash"
	"runtime"
	"sync"
)

const (
	block = sha256.BlockSize
	lanes = 8
	// least bytes that are worth the company of others.
	least = 4 << 10
	// step is how much is done before others are let in.
	step = 16 << 10
)

// Group hashes streams together. The zero value is ready to use.
type Group struct {
	once   sync.Once
	vector bool

	mu      sync.Mutex
	leading bool
	waiting []*job
	active  []*job
}

// job is a piece of one stream. Whoever brings it waits for signal: true = lead the others now, false = done.
type job struct {
	state  [8]uint32
	data   []byte // whole blocks
	signal chan bool
}

// New returns a hash that is computed together with others of the group that are written at the same time. Its sum is that
// of [sha256.New].
func (g *Group) New() hash.Hash {
	g.once.Do(func() { g.vector = faster() })
	h := sha256.New()
	if !g.vector {
		return h
	}
	return &digest{Hash: h, group: g}
}

// digest is the library's hash, out of which the state is taken for long pieces.
type digest struct {
	hash.Hash
	group *Group
	odd   int // bytes since the last whole block
}

func (d *digest) Reset() {
	d.Hash.Reset()
	d.odd = 0
}

func (d *digest) Write(p []byte) (int, error) {
	n := len(p)
	if n >= least && d.odd > 0 {
		head := block - d.odd
		_, _ = d.Hash.Write(p[:head])
		p, d.odd = p[head:], 0
	}
	if whole := len(p) &^ (block - 1); n >= least && d.together(p[:whole]) {
		p = p[whole:]
	}
	_, _ = d.Hash.Write(p)
	d.odd = (d.odd + len(p)) % block
	return n, nil
}

// The library's states in bytes: a name, the words, an unfinished block, the length.
const (
	stateAt  = 4
	lengthAt = stateAt + 32 + block
	stateLen = lengthAt + 8
)

// together hashes whole blocks in company.
func (d *digest) together(p []byte) bool {
	b, err := d.Hash.(encoding.BinaryMarshaler).MarshalBinary()
	if err != nil || len(b) != stateLen {
		return false
	}
	j := &job{data: p, signal: make(chan bool, 1)}
	for i := range j.state {
		j.state[i] = binary.BigEndian.Uint32(b[stateAt+4*i:])
	}
	d.group.run(j)
	for i, w := range j.state {
		binary.BigEndian.PutUint32(b[stateAt+4*i:], w)
	}
	binary.BigEndian.PutUint64(b[lengthAt:], binary.BigEndian.Uint64(b[lengthAt:])+uint64(len(p)))
	return d.Hash.(encoding.BinaryUnmarshaler).UnmarshalBinary(b) == nil
}

// run does a job, or has it done.
func (g *Group) run(j *job) {
	g.mu.Lock()
	g.waiting = append(g.waiting, j)
	if !g.leading {
		g.leading = true
		j.signal <- true
	}
	g.mu.Unlock()
	if <-j.signal {
		g.lead(j)
	}
}

// lead does a step of all jobs after the other, until its own is done; then another leads.
func (g *Group) lead(own *job) {
	for {
		g.mu.Lock()
		for len(g.active) < lanes && len(g.waiting) > 0 {
			g.active = append(g.active, g.waiting[0])
			g.waiting = g.waiting[1:]
		}
		g.mu.Unlock()
		n := step
		for _, j := range g.active {
			n = min(n, len(j.data))
		}
		advance(g.active, n)
		if g.finish(own) {
			return
		}
	}
}

// finish lets go of jobs that are done, and says whether own was one of them.
func (g *Group) finish(own *job) (over bool) {
	left := g.active[:0]
	for _, j := range g.active {
		switch {
		case len(j.data) > 0:
			left = append(left, j)
		case j == own:
			over = true
		default:
			j.signal <- false
		}
	}
	clear(g.active[len(left):])
	g.active = left
	if !over {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case len(g.active) > 0:
		g.active[0].signal <- true
	case len(g.waiting) > 0:
		g.waiting[0].signal <- true
	default:
		g.leading = false
	}
	return true
}

// advance hashes n bytes of each job.
func advance(jobs []*job, n int) {
	var state [8][8]uint32
	var data [lanes]*byte
	for lane := range data {
		j := jobs[min(lane, len(jobs)-1)] // lanes without a job repeat the last one
		data[lane] = &j.data[0]
		for i, w := range j.state {
			state[i][lane] = w
		}
	}
	blocks8(&state, &data, &k, n/block)
	for lane, j := range jobs {
		for i := range j.state {
			j.state[i] = state[i][lane]
		}
		j.data = j.data[n:]
		runtime.KeepAlive(j)
	}
}

// k are the constants of FIPS 180-4, 4.2.2.
var k = [64]uint32{
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
	0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
	0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
	0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
	0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
	0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
	0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
	0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
}
