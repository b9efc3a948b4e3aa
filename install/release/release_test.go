package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"debug/elf"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// program is the beginning of a program of a machine.
func program(m elf.Machine, name string) string {
	head := make([]byte, 64)
	copy(head, elf.ELFMAG)
	head[4], head[5], head[18], head[19] = 2, 1, byte(m), byte(m>>8)
	return string(head) + name
}

func ours(name string) string { return program(machines[runtime.GOARCH], name) }

type entry struct {
	name, text string
	kind       byte
	link       string
}

// archive is a tar.gz.
func archive(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	zip := gzip.NewWriter(&b)
	w := tar.NewWriter(zip)
	for _, e := range entries {
		if e.kind == 0 {
			e.kind = tar.TypeReg
		}
		must(t, w.WriteHeader(&tar.Header{Typeflag: e.kind, Name: e.name, Linkname: e.link, Size: int64(len(e.text)), Mode: 0o755}))
		_, err := io.WriteString(w, e.text)
		must(t, err)
	}
	must(t, errors.Join(w.Close(), zip.Close()))
	return b.Bytes()
}

func good(t testing.TB) []byte {
	return archive(t, entry{name: "berth_1/", kind: tar.TypeDir}, entry{name: "berth_1/berth", text: ours("berth")},
		entry{name: "berth_1/berth-helper", text: ours("helper")}, entry{name: "berth_1/LICENSE", text: "text"})
}

func file(t testing.TB, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must(t, os.WriteFile(path, data, 0o644))
	return path
}

func sum(data []byte) string {
	d := sha256.Sum256(data)
	return hex.EncodeToString(d[:])
}

func TestArchive(t *testing.T) {
	data := good(t)
	path := file(t, "berth.tar.gz", data)
	must(t, os.WriteFile(filepath.Join(filepath.Dir(path), SumsName), []byte(sum(data)+"  berth.tar.gz\n"+sum(nil)+" *other\n"), 0o644))
	r, err := Open(path, Proof{}, t.TempDir())
	must(t, err)
	if r.Kind != Archive || r.SHA256 != sum(data) {
		t.Errorf("release is %+v", r)
	}
	all, err := os.ReadDir(r.Dir)
	must(t, err)
	if len(all) != 2 {
		t.Errorf("unpacked are %v", all)
	}
	if b, err := os.ReadFile(filepath.Join(r.Dir, "berth")); err != nil || string(b) != ours("berth") {
		t.Errorf("berth is %q, %v", b, err)
	}
}

// TestBinary: each of the programs beside the one that is named needs a proof of its own.
func TestBinary(t *testing.T) {
	path := file(t, "berth", []byte(ours("berth")))
	dir := filepath.Dir(path)
	must(t, os.WriteFile(filepath.Join(dir, "berth-helper"), []byte(ours("helper")), 0o755))
	if _, err := Open(path, Proof{SHA256: sum([]byte(ours("berth")))}, t.TempDir()); !errors.Is(err, ErrUnproven) {
		t.Errorf("a helper without a digest: %v", err)
	}
	sums := fmt.Sprintf("%s  berth\n%s  berth-helper\n", sum([]byte(ours("berth"))), sum([]byte(ours("helper"))))
	must(t, os.WriteFile(filepath.Join(dir, SumsName), []byte(sums), 0o644))
	r, err := Open(path, Proof{}, t.TempDir())
	must(t, err)
	if _, err := os.Stat(filepath.Join(r.Dir, "berth-helper")); err != nil || r.Kind != Binary {
		t.Errorf("release is %+v, %v", r, err)
	}
	must(t, os.WriteFile(filepath.Join(dir, "berth-helper"), []byte(ours("another")), 0o755))
	if _, err := Open(path, Proof{}, t.TempDir()); err == nil || !strings.Contains(err.Error(), "berth-helper is not what") {
		t.Errorf("another helper: %v", err)
	}
	if _, err := Open(path, Proof{Insecure: true}, t.TempDir()); err == nil {
		t.Error("a digest that is wrong is passed over where none is needed")
	}
}

// TestPackages are handed on as they are, by the name that packagers want.
func TestPackages(t *testing.T) {
	for text, kind := range map[string]Kind{"!<arch>\ndebian-binary": Deb, "\xed\xab\xee\xdb\x03\x00": RPM} {
		r, err := Open(file(t, "anything", []byte(text)), Proof{SHA256: strings.ToUpper(sum([]byte(text)))}, t.TempDir())
		if err != nil || r.Kind != kind || filepath.Ext(r.File) != "."+string(kind) {
			t.Errorf("%s: %+v, %v", kind, r, err)
		}
	}
}

// TestProof refuses what nothing proves, and what is proven to be something else.
func TestProof(t *testing.T) {
	data := good(t)
	for name, c := range map[string]struct {
		proof Proof
		sums  string
		want  string // of the error
	}{
		"nothing":       {want: ErrUnproven.Error()},
		"insecure":      {proof: Proof{Insecure: true}},
		"digest":        {proof: Proof{SHA256: sum(data)}},
		"wrong digest":  {proof: Proof{SHA256: sum(nil)}, want: "and should be " + sum(nil)},
		"short digest":  {proof: Proof{SHA256: "abcd"}, want: "of 64 digits"},
		"not listed":    {sums: sum(data) + "  another\n", want: ErrUnproven.Error()},
		"wrong listed":  {sums: sum(nil) + "  r.tar.gz\n", want: "is not what SHA256SUMS says"},
		"both, one bad": {proof: Proof{SHA256: sum(data)}, sums: sum(nil) + "  r.tar.gz\n", want: "is not what SHA256SUMS says"},
		"bad list":      {sums: "hello\n", want: "line 1"},
		"two digests":   {sums: sum(data) + "  r.tar.gz\n" + sum(nil) + "  r.tar.gz\n", want: "two digests"},
		"long list":     {sums: strings.Repeat("#", maxProof+1), want: "more than"},
		"half a key":    {proof: Proof{Key: "k"}, want: "both are needed"},
	} {
		t.Run(name, func(t *testing.T) {
			path := file(t, "r.tar.gz", data)
			if c.sums != "" {
				must(t, os.WriteFile(filepath.Join(filepath.Dir(path), SumsName), []byte(c.sums), 0o644))
			}
			_, err := Open(path, c.proof, t.TempDir())
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want %q", err, c.want)
			}
		})
	}
}

func key(t *testing.T, public any) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(public)
	must(t, err)
	return file(t, "key.pem", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

func TestSignature(t *testing.T) {
	data := good(t)
	public, private, err := ed25519.GenerateKey(rand.Reader)
	must(t, err)
	other, _, err := ed25519.GenerateKey(rand.Reader)
	must(t, err)
	weak, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)
	sig := ed25519.Sign(private, data)
	for name, c := range map[string]struct {
		sig  []byte
		key  string
		want string
	}{
		"raw":           {sig, key(t, public), ""},
		"base64":        {[]byte(base64.StdEncoding.EncodeToString(sig) + "\n"), key(t, public), ""},
		"another's":     {sig, key(t, other), "not of this file"},
		"of other data": {ed25519.Sign(private, data[1:]), key(t, public), "not of this file"},
		"no signature":  {[]byte("hello"), key(t, public), "no Ed25519 signature"},
		"another kind":  {sig, key(t, &weak.PublicKey), "must be Ed25519"},
		"no key":        {sig, file(t, "key", []byte("hello")), "no PUBLIC KEY"},
	} {
		_, err := Open(file(t, "r.tar.gz", data), Proof{Signature: file(t, "sig", c.sig), Key: c.key}, t.TempDir())
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestHostile has archives that somebody made to write elsewhere, to fill the disk, or to be taken for a release.
func TestHostile(t *testing.T) {
	helper := entry{name: "b/berth-helper", text: ours("helper")}
	berth := entry{name: "b/berth", text: ours("berth")}
	whole := good(t)
	many := make([]entry, maxEntries+1)
	for i := range many {
		many[i] = entry{name: fmt.Sprintf("f%d", i)}
	}
	// The header of a file of some petabytes, and an archive of which a part of the end is not there.
	huge := func() []byte {
		var b bytes.Buffer
		zip := gzip.NewWriter(&b)
		w := tar.NewWriter(zip)
		must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "b/berth", Size: 1 << 50, Format: tar.FormatPAX}))
		must(t, zip.Close())
		return b.Bytes()
	}()
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"parent":        {archive(t, entry{name: "../berth", text: ours("x")}), "leads out"},
		"deep parent":   {archive(t, entry{name: "b/../../berth", text: ours("x")}), "leads out"},
		"absolute":      {archive(t, entry{name: "/berth", text: ours("x")}), "leads out"},
		"link":          {archive(t, entry{name: "b/berth", kind: tar.TypeSymlink, link: "/etc/passwd"}), "neither a file"},
		"hard link":     {archive(t, entry{name: "b/berth", kind: tar.TypeLink, link: "/etc/passwd"}), "neither a file"},
		"link of a dir": {archive(t, entry{name: "b", kind: tar.TypeSymlink, link: "/etc"}, berth, helper), "neither a file"},
		"device":        {archive(t, entry{name: "b/berth", kind: tar.TypeBlock}), "neither a file"},
		"fifo":          {archive(t, entry{name: "b/berth", kind: tar.TypeFifo}), "neither a file"},
		"twice":         {archive(t, berth, berth, helper), "exists"},
		"many":          {archive(t, many...), "more than 64 entries"},
		"empty program": {archive(t, entry{name: "b/berth"}, helper), "0 bytes"},
		"huge":          {huge, "may have"},
		"no helper":     {archive(t, berth), "no berth-helper"},
		"too deep":      {archive(t, entry{name: "a/b/berth", text: ours("x")}, helper), "no berth"},
		"a script":      {archive(t, entry{name: "b/berth", text: "#!/bin/sh\necho this is long enough\n"}, helper), "no program"},
		"other machine": {archive(t, entry{name: "b/berth", text: program(elf.EM_S390, "berth")}, helper), "another machine"},
		"cut off":       {whole[:len(whole)/2], "unexpected EOF"},
		"no checksum":   {whole[:len(whole)-8], "unexpected EOF"},
		"empty":         {nil, "none of"},
		"text":          {[]byte("hello, this is a text"), "none of"},
		"gzip of text":  {zipped(t, strings.NewReader("hello"), 5), "unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			_, err := Open(file(t, "r.tar.gz", c.data), Proof{Insecure: true}, filepath.Join(dir, "in"))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want %q", err, c.want)
			}
			if all, _ := os.ReadDir(dir); len(all) != 1 {
				t.Errorf("written elsewhere: %v", all)
			}
		})
	}
}

// TestEndless: what unpacks to more than it may is given up, in an entry and after the last one.
func TestEndless(t *testing.T) {
	const most = 1 << 20
	after := zipped(t, zeros{}, most+2)
	entries := archive(t, entry{name: "b/other", text: strings.Repeat("x", most+2)})
	for name, data := range map[string][]byte{"after": after, "entry": entries} {
		if err := unpack(file(t, "r", data), t.TempDir(), most); err == nil {
			t.Errorf("%s: it is unpacked", name)
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func zipped(t *testing.T, r io.Reader, n int64) []byte {
	t.Helper()
	var b bytes.Buffer
	zip, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	must(t, err)
	_, err = io.CopyN(zip, r, n)
	must(t, errors.Join(err, zip.Close()))
	return b.Bytes()
}

// TestNoFile: what would never end, or is nobody's file, is not begun with.
func TestNoFile(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	must(t, unix.Mkfifo(fifo, 0o600))
	for _, path := range []string{fifo, t.TempDir(), "/dev/zero", filepath.Join(t.TempDir(), "absent")} {
		if _, err := Open(path, Proof{Insecure: true}, t.TempDir()); err == nil {
			t.Errorf("%s is taken", path)
		}
	}
}

// TestFullDisk has no room for the release.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for a disk of its own")
	}
	dir := t.TempDir()
	if err := unix.Mount("small", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	big := archive(t, entry{name: "b/berth", text: ours(strings.Repeat("x", 1<<20))}, entry{name: "b/berth-helper", text: ours("h")})
	if _, err := Open(file(t, "r.tar.gz", big), Proof{Insecure: true}, filepath.Join(dir, "in")); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("error is %v", err)
	}
}

func FuzzArchive(f *testing.F) {
	f.Add(good(f))
	f.Add(archive(f, entry{name: "../berth", text: "x"}))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		path := filepath.Join(dir, "r")
		must(t, os.WriteFile(path, data, 0o600))
		must(t, os.Mkdir(filepath.Join(dir, "out"), 0o700))
		_ = unpack(path, filepath.Join(dir, "out"), 1<<20)
		if all, err := os.ReadDir(dir); err != nil || len(all) != 2 {
			t.Errorf("written elsewhere: %v, %v", all, err)
		}
	})
}

func FuzzSums(f *testing.F) {
	f.Add(sum(nil) + "  name\n# remark\n" + sum(nil) + " *other\n")
	f.Fuzz(func(t *testing.T, text string) {
		all, err := parseSums(text)
		for name, digest := range all {
			if err == nil && (name == "" || !isDigest(digest)) {
				t.Errorf("%q has %q", name, digest)
			}
		}
	})
}
