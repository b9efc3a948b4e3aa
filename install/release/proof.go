package release

import (
	"bufio"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// SumsName is the file of digests beside a release, as sha256sum(1) writes and checks it.
const SumsName = "SHA256SUMS"

// maxProof is how much is read of what proves something, in bytes.
const maxProof = 1 << 20

// Proof is what shows that a release is the one that is meant. One of its kinds is enough; of several all must hold.
type Proof struct {
	SHA256    string // in hex, of the file
	Signature string // a file: Ed25519 (RFC 8032) over the bytes of the release, raw or in base64
	Key       string // a file: the public key of the signature, in PEM (SubjectPublicKeyInfo, RFC 8410)
	Insecure  bool   // nothing has to prove it

	sums map[string]string // by name, of the file beside the release
}

// ErrUnproven says that nothing says what the release has to be.
var ErrUnproven = errors.New("nothing says that it is the release that is meant")

// complete reads what proves something, before the release itself.
func (p *Proof) complete(file string) error {
	p.SHA256 = strings.ToLower(strings.TrimSpace(p.SHA256))
	if p.SHA256 != "" && !isDigest(p.SHA256) {
		return fmt.Errorf("digest %q: must be SHA-256 in hex, of 64 digits", p.SHA256)
	}
	if (p.Signature == "") != (p.Key == "") {
		return errors.New("a signature is checked with a key: both are needed, or neither")
	}
	path := filepath.Join(filepath.Dir(file), SumsName)
	data, err := small(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil {
		p.sums, err = parseSums(string(data))
	}
	if err != nil {
		return fmt.Errorf("read digests of %s: %w", path, err)
	}
	_, listed := p.sums[filepath.Base(file)]
	if p.SHA256 == "" && !listed && p.Signature == "" && !p.Insecure {
		return fmt.Errorf("%s: %w: give its digest, or its signature and the key, or have a %s beside it that names it",
			file, ErrUnproven, SumsName)
	}
	return nil
}

func isDigest(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == 32
}

// parseSums reads lines of sha256sum(1): a digest, two spaces or a space and an asterisk, and a name.
func parseSums(text string) (map[string]string, error) {
	out := map[string]string{}
	lines := bufio.NewScanner(strings.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSuffix(lines.Text(), "\r")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		digest, name, ok := strings.Cut(line, " ")
		digest = strings.ToLower(digest)
		if !ok || !isDigest(digest) || len(name) < 2 || name[0] != ' ' && name[0] != '*' {
			return nil, fmt.Errorf("line %d is not a SHA-256 digest and a name: %.100q", n, line)
		}
		name = name[1:]
		if had, twice := out[name]; twice && had != digest {
			return nil, fmt.Errorf("line %d: %q has two digests", n, name)
		}
		out[name] = digest
	}
	return out, lines.Err()
}

// check holds the copy of a release to its proof.
func (p *Proof) check(file, held, digest string) error {
	if p.SHA256 != "" && digest != p.SHA256 {
		return fmt.Errorf("%s is not what was meant: its SHA-256 digest is %s, and should be %s", file, digest, p.SHA256)
	}
	if want, listed := p.sums[filepath.Base(file)]; listed && digest != want {
		return fmt.Errorf("%s is not what %s says: its SHA-256 digest is %s, and should be %s", file, SumsName, digest, want)
	}
	if p.Signature == "" {
		return nil
	}
	if err := verify(held, p.Signature, p.Key); err != nil {
		return fmt.Errorf("check signature of %s: %w", file, err)
	}
	return nil
}

// checkBeside is check for a program beside the one that was named, of which neither a given digest nor a signature is.
func (p *Proof) checkBeside(file, digest string) error {
	want, listed := p.sums[filepath.Base(file)]
	switch {
	case listed && want != digest:
		return fmt.Errorf("%s is not what %s says: its SHA-256 digest is %s, and should be %s", file, SumsName, digest, want)
	case !listed && !p.Insecure:
		return fmt.Errorf("%s: %w: name it in a %s beside it", file, ErrUnproven, SumsName)
	}
	return nil
}

func verify(file, signature, key string) error {
	text, err := small(key)
	if err != nil {
		return fmt.Errorf("read key: %w", err)
	}
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "PUBLIC KEY" {
		return fmt.Errorf("read key: %s has no PUBLIC KEY in PEM, as `openssl pkey -pubout` writes it", key)
	}
	any, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return fmt.Errorf("read key: %w", err)
	}
	public, ok := any.(ed25519.PublicKey)
	if !ok {
		return fmt.Errorf("read key: %s is a key of another kind: must be Ed25519", key)
	}
	sig, err := small(signature)
	if err != nil {
		return fmt.Errorf("read signature: %w", err)
	}
	if len(sig) != ed25519.SignatureSize {
		if sig, err = base64.StdEncoding.DecodeString(strings.TrimSpace(string(sig))); err != nil || len(sig) != ed25519.SignatureSize {
			return fmt.Errorf("read signature: %s has no Ed25519 signature: must be of %d bytes, raw or in base64", signature, ed25519.SignatureSize)
		}
	}
	// Ed25519 takes the message twice, so that all of it is in memory.
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if !ed25519.Verify(public, data, sig) {
		return errors.New("it is not of this file by this key")
	}
	return nil
}

// small reads a file that proves something.
func small(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxProof+1))
	if err == nil && len(data) > maxProof {
		err = fmt.Errorf("%s has more than %d bytes", path, maxProof)
	}
	return data, err
}
