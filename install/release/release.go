// Package release takes the programs that are to be installed out of a file that anybody may have made: only when it is
// what a digest or a signature says, and bounded in all that it has.
package release

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// Kind is what kind of file a release is.
type Kind string

// Kinds of releases.
const (
	Archive Kind = "archive" // a tar.gz with the programs
	Binary  Kind = "program" // berth itself, with its helpers beside it
	Deb     Kind = "deb"
	RPM     Kind = "rpm"
)

// Programs are the names of the programs, the one that the others serve first. Those after the second may be missing.
var Programs = []string{"berth", "berth-helper", "berth-wasm"}

const required = 2

// Bounds of what is read, in bytes: a release has 60 MB.
const (
	MaxFile     = 1 << 30
	maxPrograms = 1 << 30 // all of them, unpacked
)

// Release is a release that was found to be what it is said to be.
type Release struct {
	Kind   Kind
	File   string // a copy of a package, which nobody else writes to, for who installs packages
	Dir    string // has the programs of an archive or of a binary
	SHA256 string // of the file, in hex
}

// Open copies the release to dir, which is empty and nobody else's, and looks only at the copy: that is what is
// installed.
func Open(file string, p Proof, dir string) (*Release, error) {
	if err := p.complete(file); err != nil {
		return nil, err
	}
	r := &Release{Dir: filepath.Join(dir, "programs")}
	if err := os.MkdirAll(r.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	held := filepath.Join(dir, "release")
	digest, err := take(file, held)
	if err != nil {
		return nil, err
	}
	r.SHA256 = digest
	if err := p.check(file, held, digest); err != nil {
		return nil, err
	}
	if r.Kind, err = kindOf(held); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	switch r.Kind {
	case Deb, RPM:
		// Packagers look at the name, too.
		r.File = held + "." + string(r.Kind)
		if err := os.Rename(held, r.File); err != nil {
			return nil, fmt.Errorf("name release: %w", err)
		}
		return r, nil
	case Archive:
		err = unpack(held, r.Dir, maxPrograms)
	case Binary:
		err = r.beside(file, held, p)
	}
	if err == nil {
		err = r.look()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if r.Kind == Archive {
		_ = os.Remove(held) // what it has is unpacked
	}
	return r, nil
}

// take copies a file, and returns the SHA-256 digest of what it has copied, in hex.
func take(from, to string) (string, error) {
	// Opening a FIFO would wait for somebody to write to it.
	src, err := os.OpenFile(from, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", fmt.Errorf("open release: %w", err)
	}
	defer src.Close()
	st, err := src.Stat()
	switch {
	case err != nil:
		return "", fmt.Errorf("open release: %w", err)
	case !st.Mode().IsRegular():
		return "", fmt.Errorf("open release: %s is no file", from)
	case st.Size() > MaxFile:
		return "", fmt.Errorf("open release: %s has %d bytes, and may have %d", from, st.Size(), MaxFile)
	}
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", fmt.Errorf("copy release: %w", err)
	}
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(dst, h), io.LimitReader(src, MaxFile+1))
	if err = errors.Join(err, dst.Close()); err == nil && n > MaxFile {
		err = fmt.Errorf("%s has more than %d bytes", from, MaxFile)
	}
	if err != nil {
		return "", fmt.Errorf("copy release: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// kindOf tells kinds by their first bytes: names are anybody's choice.
func kindOf(path string) (Kind, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	head := make([]byte, 8)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return "", err
	}
	head = head[:n]
	for kind, magic := range map[Kind]string{Archive: "\x1f\x8b", Deb: "!<arch>\n", RPM: "\xed\xab\xee\xdb", Binary: "\x7fELF"} {
		if bytes.HasPrefix(head, []byte(magic)) {
			return kind, nil
		}
	}
	return "", errors.New("it is none of a tar.gz with the programs, a program, a .deb and a .rpm")
}

// beside takes a program and those that are beside it, each of which needs its own proof.
func (r *Release) beside(file, held string, p Proof) error {
	if err := os.Rename(held, filepath.Join(r.Dir, Programs[0])); err != nil {
		return err
	}
	for i, name := range Programs[1:] {
		from := filepath.Join(filepath.Dir(file), name)
		if _, err := os.Lstat(from); errors.Is(err, fs.ErrNotExist) && i+1 >= required {
			continue
		}
		to := filepath.Join(r.Dir, name)
		digest, err := take(from, to)
		if err != nil {
			return fmt.Errorf("the program beside it: %w", err)
		}
		if err := p.checkBeside(from, digest); err != nil {
			return err
		}
	}
	return nil
}

// machines are what programs for a machine say that they are for, by Go's name.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// look finds out whether the programs are there, and are for this machine.
func (r *Release) look() error {
	for i, name := range Programs {
		path := filepath.Join(r.Dir, name)
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			if i < required {
				return fmt.Errorf("it has no %s", name)
			}
			continue
		}
		if err != nil {
			return err
		}
		// Of an ELF file the first 20 bytes: magic, class, byte order (both have that of x86), ..., type, and at 18 the
		// machine.
		var head [20]byte
		_, err = io.ReadFull(f, head[:])
		f.Close()
		if err != nil || string(head[:4]) != elf.ELFMAG {
			return fmt.Errorf("its %s is no program", name)
		}
		if has, want := elf.Machine(head[18])|elf.Machine(head[19])<<8, machines[runtime.GOARCH]; has != want {
			return fmt.Errorf("its %s is for another machine (%s, and this is %s)", name, has, want)
		}
		if err := os.Chmod(path, 0o755); err != nil {
			return err
		}
	}
	return nil
}
