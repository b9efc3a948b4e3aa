package filetree

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Removal says what is removed. The zero value removes everything.
type Removal struct {
	// May refuses to have an entry removed; depth counts the directories between it and the top. nil: all may go.
	May func(depth int, st *unix.Stat_t) error
	// Gone is told of each file and directory that was removed; nil: nobody is.
	Gone func(st *unix.Stat_t)
}

// RemoveAll removes path with all below it; it is no error when there is nothing. What is mounted below stays, and is
// an error. Of many errors it returns the first, with their number: the rest of the tree is removed nevertheless.
func RemoveAll(ctx context.Context, path string) error {
	path = filepath.Clean(path)
	dir, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", Shown(path), err)
	}
	defer unix.Close(dir)
	return removeAt(ctx, dir, filepath.Base(path), path, Removal{})
}

// RemoveAt is RemoveAll of an entry of an open directory, whose path is for messages.
func RemoveAt(ctx context.Context, dir int, name, path string, r Removal) error {
	return removeAt(ctx, dir, name, filepath.Join(path, name), r)
}

func removeAt(ctx context.Context, dir int, name, path string, r Removal) error {
	m := &remover{Removal: r, way: newWay(dir, filepath.Dir(path))}
	defer m.close()
	m.entry(name)
	return m.run(ctx)
}

// Empty removes what is in the directory fd, whose path is for messages.
func Empty(ctx context.Context, fd int, path string, r Removal) error {
	own, err := openDir(fd, ".")
	if err != nil {
		return fmt.Errorf("open %s: %w", Shown(path), err)
	}
	defer unix.Close(own)
	m := &remover{Removal: r, way: newWay(own, path), list: true}
	defer m.close()
	return m.run(ctx)
}

type remover struct {
	Removal
	*way
	list   bool // the lowest directory is to be emptied, too
	first  error
	errors int
}

func (m *remover) fail(name string, err error) {
	m.top().failed = true
	if m.errors++; m.first == nil {
		m.first = fmt.Errorf("remove %s: %w", m.path(name), err)
	}
}

func (m *remover) result() error {
	if m.errors > 1 {
		return fmt.Errorf("%w (and %d more)", m.first, m.errors-1)
	}
	return m.first
}

func (m *remover) run(ctx context.Context) error {
	for m.depth() > 0 || m.list {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("remove %s: %w", Shown(m.levels[0].name), err)
		}
		ok, err := m.more()
		// A directory that somebody else has removed meanwhile has nothing to list.
		if err := unlessGone(err); err != nil {
			m.fail("", err)
		}
		if ok {
			m.entry(m.next())
			continue
		}
		done, err := m.end()
		if err != nil {
			return fmt.Errorf("remove %s: %w", m.path(""), err)
		}
		if done {
			break
		}
	}
	return m.result()
}

// end is the end of a directory that was read. What is read while entries go may be incomplete, so that it is read
// again as long as removing leaves any.
func (m *remover) end() (done bool, err error) {
	l := m.top()
	if m.depth() == 0 {
		if !l.removed || l.failed {
			return true, nil
		}
		l.removed = false
		_, err := unix.Seek(l.fd, 0, unix.SEEK_SET)
		return false, err
	}
	name, failed, removed := l.name, l.failed, l.removed
	depth := m.depth()
	if err := m.up(); err != nil {
		return false, err
	}
	if m.depth() != depth-1 { // it was moved, with some that it is in
		m.top().removed = true
		return false, nil
	}
	if failed {
		m.top().failed = true
		return false, nil
	}
	err = m.rmdir(name)
	if notEmpty(err) && removed {
		_, err = m.down(name)
	}
	if err != nil {
		m.fail(name, err)
	}
	return false, nil
}

func notEmpty(err error) bool { return errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) }

func (m *remover) rmdir(name string) error {
	var st unix.Stat_t
	if m.Gone != nil {
		if err := m.stat(name, &st); err != nil {
			return unlessGone(err)
		}
	}
	err := unix.Unlinkat(m.top().fd, name, unix.AT_REMOVEDIR)
	if err == nil {
		m.top().removed = true
		if m.Gone != nil {
			m.Gone(&st)
		}
	}
	return unlessGone(err)
}

func (m *remover) stat(name string, st *unix.Stat_t) error {
	return unix.Fstatat(m.top().fd, name, st, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT)
}

func unlessGone(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// entry removes one entry, or enters it when it is a directory with something in it. What kind it is the kernel says,
// when asked to remove it.
func (m *remover) entry(name string) {
	if err := m.remove(name); err != nil {
		m.fail(name, err)
	}
}

func (m *remover) remove(name string) error {
	var st unix.Stat_t
	if m.May != nil || m.Gone != nil {
		if err := m.stat(name, &st); err != nil {
			return unlessGone(err)
		}
	}
	if m.May != nil {
		if err := m.May(m.depth(), &st); err != nil {
			return err
		}
	}
	err := unix.Unlinkat(m.top().fd, name, 0)
	if err == nil {
		m.top().removed = true
		if m.Gone != nil {
			m.Gone(&st)
		}
	}
	if !errors.Is(err, unix.EISDIR) {
		return unlessGone(err)
	}
	if err = m.rmdir(name); !notEmpty(err) {
		return err
	}
	_, err = m.down(name)
	return unlessGone(err)
}
