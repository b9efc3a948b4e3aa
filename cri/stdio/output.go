package stdio

import (
	"errors"
	"io"
	"sync"

	"github.com/berth-node/berth/internal/excerpt"
)

// MaxOutput is what an answer of ExecSync holds of both streams together. The rest is read and dropped, so that the
// command ends. Clients of the CRI take messages of 16 MiB, and the answer has a few bytes beside the output.
const MaxOutput = 16<<20 - 1<<10

// Fit cuts two outputs so that one answer holds both. One that takes less than its half leaves the rest to the other.
func Fit(a, b []byte) ([]byte, []byte) {
	const half = MaxOutput / 2
	return a[:min(len(a), max(half, MaxOutput-len(b)))], b[:min(len(b), max(half, MaxOutput-len(a)))]
}

// Capped keeps the first bytes, and takes all.
type Capped struct{ excerpt.First }

// NewCapped returns one that keeps so many.
func NewCapped(most int) *Capped { return &Capped{excerpt.First{Most: most}} }

// chunks are what output is read into: most commands of probes say little or nothing, and a new buffer for each of
// their streams would keep the garbage collector busier than all else that the agent does for them.
var chunks = sync.Pool{New: func() any { return new([8 << 10]byte) }}

// ReadFrom reads all that there is.
func (c *Capped) ReadFrom(r io.Reader) (n int64, err error) {
	buf := chunks.Get().(*[8 << 10]byte) // nothing else is in there
	defer chunks.Put(buf)
	for {
		got, err := r.Read(buf[:])
		_, _ = c.Write(buf[:got])
		n += int64(got)
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}
