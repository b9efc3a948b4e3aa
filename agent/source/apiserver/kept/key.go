package kept

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/berth-node/berth/agent/record"
	"github.com/berth-node/berth/internal/atomicfile"
)

// Credential is the name of the service's credential that the key is made of, where there is one.
const Credential = "berth-offline-key"

const (
	keySize       = 32
	minCredential = 16
	maxCredential = 1 << 20 // systemd's own limit
	magic         = "berth-kept\n"
	maxHeader     = 4 << 10
)

// key seals what is kept.
type key struct {
	id   string // which key it is, which does not tell what it is
	aead cipher.AEAD
}

// header is before what is sealed, and is held to it.
type header struct {
	Version int    `json:"version"`
	Node    string `json:"node"`
	Key     string `json:"key"`
	First   uint64 `json:"first,omitempty"` // how many changes it was made with
}

// openKey finds the machine's key, or makes one.
func openKey(dir, credentials string, log *slog.Logger) (key, error) {
	if credentials != "" {
		path := filepath.Join(credentials, Credential)
		secret, err := atomicfile.Read(path, maxCredential)
		if err == nil && len(secret) < minCredential {
			err = fmt.Errorf("it has %d bytes, and must have at least %d", len(secret), minCredential)
		}
		if err == nil {
			return keyOf(secret)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return key{}, fmt.Errorf("read credential %s: %w", path, err)
		}
	}
	path := filepath.Join(dir, keyFile)
	secret, err := atomicfile.Read(path, maxCredential)
	switch {
	case err == nil && len(secret) == keySize:
		// Somebody may have copied it here. A disk that cannot be written refuses a mode that the file has already,
		// too.
		if st, err := os.Lstat(path); err != nil || st.Mode() != 0o600 {
			if err := os.Chmod(path, 0o600); err != nil {
				return key{}, err
			}
		}
		return keyOf(secret)
	case err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, atomicfile.ErrNoFile):
		return key{}, fmt.Errorf("read key %s: %w", path, err)
	case !errors.Is(err, fs.ErrNotExist):
		log.Error("key of the pods that are kept is damaged, and is put aside: they are lost", "path", path, "aside", path+record.Aside)
		if err := os.Rename(path, path+record.Aside); err != nil {
			return key{}, err
		}
	}
	secret = make([]byte, keySize)
	if _, err := rand.Read(secret); err != nil {
		return key{}, err
	}
	if err := atomicfile.WriteSynced(path, secret, 0o600); err != nil {
		return key{}, fmt.Errorf("make key: %w", err)
	}
	return keyOf(secret)
}

func keyOf(secret []byte) (key, error) {
	of := func(use string, n int) ([]byte, error) {
		return hkdf.Key(sha256.New, secret, nil, "berth kept pods "+use, n)
	}
	id, err := of("name", 8)
	if err != nil {
		return key{}, err
	}
	bytes, err := of("seal", keySize)
	if err != nil {
		return key{}, err
	}
	block, err := aes.NewCipher(bytes)
	if err != nil {
		return key{}, err
	}
	aead, err := cipher.NewGCM(block)
	return key{hex.EncodeToString(id), aead}, err
}

// version is that of the file's format. In the one before changes had no marks, and in the first there was one sealed
// text with all in it.
const (
	version         = 3
	unmarkedVersion = 2
	wholeVersion    = 1
)

// head is what a file of the node begins with that is made with so many changes.
func (k key) head(node string, first uint64) ([]byte, error) {
	text, err := json.Marshal(header{Version: version, Node: node, Key: k.id, First: first})
	if err != nil {
		return nil, err
	}
	return append(append([]byte(magic), text...), '\n'), nil
}

// check finds the head of a file, and says what is wrong with it as far as that can be told.
func (k key) check(data []byte, node string) (head []byte, h header, err error) {
	rest, ok := bytes.CutPrefix(data, []byte(magic))
	if !ok {
		return nil, h, errors.New("it does not begin as such a file does")
	}
	text, _, ok := bytes.Cut(rest, []byte("\n"))
	if !ok || len(text) > maxHeader {
		return nil, h, errTorn
	}
	if err := json.Unmarshal(text, &h); err != nil {
		return nil, h, fmt.Errorf("it is damaged: %w", err)
	}
	switch {
	case h.Version < wholeVersion || h.Version > version:
		return nil, h, fmt.Errorf("it is of format %d, and this version knows %d", h.Version, version)
	case h.Node != node:
		return nil, h, fmt.Errorf("it is of node %q, and this one is %q", h.Node, node)
	case h.Key != k.id:
		return nil, h, fmt.Errorf("it is of another key (%q, and this machine's is %q)", h.Key, k.id)
	}
	return data[:len(magic)+len(text)+1], h, nil
}

// seal encrypts something, and holds it to its place.
func (k key) seal(plain, place []byte) ([]byte, error) {
	nonce := make([]byte, k.aead.NonceSize())
	if _, err := rand.Read(nonce); err != nil {
		return nil, err
	}
	return k.aead.Seal(nonce, nonce, plain, place), nil
}

// open is the reverse of seal.
func (k key) open(sealed, place []byte) ([]byte, error) {
	n := k.aead.NonceSize()
	if len(sealed) < n+k.aead.Overhead() {
		return nil, errTorn
	}
	plain, err := k.aead.Open(nil, sealed[:n], sealed[n:], place)
	if err != nil {
		return nil, errors.New("it is torn, or was changed by somebody without the key")
	}
	return plain, nil
}
