package logs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Options says which part of a log is wanted, and how.
type Options struct {
	Tail       int64     // last lines only; negative: all
	Since      time.Time // zero: all
	Limit      int64     // bytes of output at most; 0: no limit
	Timestamps bool      // each line begins with its time
	Stream     string    // "stdout" or "stderr" only; "": both

	// Ended is closed when the container has ended and written its last line. A reader that follows then ends too. nil:
	// do not follow.
	Ended <-chan struct{}
}

// maxEntry is the longest entry that is read as one. The writer cuts lines at 16 KiB; longer entries are some other
// runtime's.
const maxEntry = 1 << 20

var errLimit = errors.New("limit reached")

// Read writes the log at path to w. It is no error when there is no log yet.
func Read(ctx context.Context, path string, o Options, w io.Writer) error {
	r := &reader{path: path, o: o, out: bufio.NewWriterSize(w, 32<<10), w: w, bol: true}
	if o.Limit > 0 {
		r.left = o.Limit
	}
	err := r.read(ctx)
	if errors.Is(err, errLimit) {
		err = nil
	}
	return errors.Join(err, r.flush())
}

type reader struct {
	path string
	o    Options
	out  *bufio.Writer
	w    io.Writer
	left int64 // bytes that may still be written when there is a limit
	bol  bool  // the next byte of output begins a line
	past bool  // a line of the wanted time was met: later ones are not asked
}

func (r *reader) read(ctx context.Context) error {
	var changes *fsnotify.Watcher
	if r.o.Ended != nil {
		// Watched before it is read, so that no change falls in between. It is the directory that is watched: the file
		// is renamed by a rotation, and is not there yet before the container starts.
		var err error
		if changes, err = fsnotify.NewBufferedWatcher(64); err != nil {
			return fmt.Errorf("follow log: %w", err)
		}
		defer changes.Close()
		if err := changes.Add(filepath.Dir(r.path)); err != nil {
			return fmt.Errorf("follow log: %w", err)
		}
	}
	files, err := open(r.path)
	if err != nil {
		return err
	}
	if r.o.Tail >= 0 {
		if files, err = tail(files, r.o.Tail); err != nil {
			return err
		}
	}
	defer func() { closeAll(files) }()
	if len(files) == 0 && r.o.Ended == nil {
		return nil
	}
	for i, f := range files[:max(0, len(files)-1)] {
		if r.tooOld(f) {
			continue
		}
		if err := r.copy(ctx, bufio.NewReaderSize(f, 32<<10), nil); err != nil {
			return err
		}
		files[i].Close()
	}
	var cur *os.File
	if len(files) > 0 {
		cur = files[len(files)-1]
		files = nil
	}
	return r.follow(ctx, cur, changes)
}

// tooOld says whether nothing in f can be of the wanted time.
func (r *reader) tooOld(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && !r.o.Since.IsZero() && info.ModTime().Before(r.o.Since)
}

// follow reads cur to its end and, when asked to, what is written after.
func (r *reader) follow(ctx context.Context, cur *os.File, changes *fsnotify.Watcher) error {
	defer func() {
		if cur != nil {
			cur.Close()
		}
	}()
	in := bufio.NewReaderSize(nil, 32<<10)
	var rest []byte
	if cur != nil {
		in.Reset(cur)
	}
	ended := false
	for {
		if cur != nil {
			if err := r.copy(ctx, in, &rest); err != nil {
				return err
			}
		}
		if r.o.Ended == nil {
			return nil
		}
		next, err := r.next(ctx, cur, in, &rest)
		if err != nil {
			return err
		}
		if next != nil {
			cur, rest = next, nil
			in.Reset(cur)
			continue
		}
		if ended {
			return nil
		}
		if err := r.flush(); err != nil {
			return err
		}
		if ended, err = r.wait(ctx, changes); err != nil {
			return err
		}
	}
}

// next returns the file after cur when cur was rotated away, having read what was still written to cur before that.
func (r *reader) next(ctx context.Context, cur *os.File, in *bufio.Reader, rest *[]byte) (*os.File, error) {
	if cur == nil {
		return after(r.path, 0)
	}
	next, err := after(r.path, inode(cur))
	if err != nil || next == nil {
		return nil, err
	}
	// The writer goes over to the next file for good, so that cur has now got all it will get.
	if err := r.copy(ctx, in, rest); err != nil {
		next.Close()
		return nil, err
	}
	cur.Close()
	return next, nil
}

// wait returns when there may be more to read; true when that will be the last.
func (r *reader) wait(ctx context.Context, changes *fsnotify.Watcher) (bool, error) {
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case <-r.o.Ended:
		return true, nil
	case err := <-changes.Errors:
		// A queue that overflowed lost the wish to look, nothing else.
		if errors.Is(err, fsnotify.ErrEventOverflow) {
			return false, nil
		}
		return false, fmt.Errorf("follow log: %w", err)
	case _, ok := <-changes.Events:
		if !ok {
			return true, nil
		}
	}
	for {
		select {
		case <-changes.Events:
		default:
			return false, nil
		}
	}
}

// copy writes the entries of in until its end. An entry without its end is kept in rest until the next call; when rest
// is nil, the file is complete and there is none.
func (r *reader) copy(ctx context.Context, in *bufio.Reader, rest *[]byte) error {
	for {
		line, err := in.ReadSlice('\n')
		full := errors.Is(err, bufio.ErrBufferFull)
		if err != nil && !full && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read log: %w", err)
		}
		if rest == nil {
			rest = new([]byte)
		}
		if err != nil || len(*rest) > 0 {
			if len(*rest)+len(line) <= maxEntry {
				*rest = append(*rest, line...)
			}
			if full {
				continue
			}
			if err != nil {
				return ctx.Err()
			}
			line = *rest
		}
		if werr := r.entry(line[:len(line)-1]); werr != nil {
			return werr
		}
		*rest = (*rest)[:0]
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// entry writes one entry if it is wanted. A line that is none is passed over: after a power cut a file may have any
// bytes.
func (r *reader) entry(line []byte) error {
	e, err := parse(line)
	if err != nil {
		return nil
	}
	if !r.o.Since.IsZero() && !r.past {
		t, err := e.time()
		if err != nil || t.Before(r.o.Since) {
			return nil
		}
		r.past = true
	}
	if r.o.Stream == "stdout" && e.Stderr || r.o.Stream == "stderr" && !e.Stderr {
		return nil
	}
	if r.o.Timestamps && r.bol {
		if err := r.write(e.Time, []byte{' '}); err != nil {
			return err
		}
	}
	r.bol = !e.Partial
	if e.Partial {
		return r.write(e.Text)
	}
	return r.write(e.Text, []byte{'\n'})
}

func (r *reader) write(parts ...[]byte) error {
	for _, b := range parts {
		if r.o.Limit > 0 && int64(len(b)) >= r.left {
			if _, err := r.out.Write(b[:r.left]); err != nil {
				return fmt.Errorf("write log: %w", err)
			}
			return errLimit
		}
		r.left -= int64(len(b))
		if _, err := r.out.Write(b); err != nil {
			return fmt.Errorf("write log: %w", err)
		}
	}
	return nil
}

// flush hands on what is buffered, down to the client when w is one.
func (r *reader) flush() error {
	if err := r.out.Flush(); err != nil {
		return fmt.Errorf("write log: %w", err)
	}
	if f, ok := r.w.(interface{ Flush() }); ok {
		f.Flush()
	}
	return nil
}
