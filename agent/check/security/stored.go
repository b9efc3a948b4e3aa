package security

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// Bounds of the search, in bytes: of a manifest, of a file that is searched, and of a value that is worth it. A shorter
// one would be found by chance.
const (
	maxManifest = 8 << 20
	maxSearched = 64 << 20
	leastValue  = 8
)

// storedSecrets looks for the values of the manifests' Secrets in what the node keeps on the disk and logs.
func (c Config) storedSecrets(s settings) Item {
	item := Item{Name: "secrets on disk", Do: "remove the file, and report it: no record and no log is to have them"}
	values, err := manifestSecrets(s.text("staticPodPath"))
	if err != nil {
		item.Status, item.Found = Unknown, err.Error()
		return item
	}
	var in []string
	searched := 0
	for _, p := range c.places(s) {
		if p.name != "records" {
			continue
		}
		for _, pattern := range p.paths {
			all, _ := filepath.Glob(pattern) // it was looked through already
			for _, path := range all {
				data, err := bounded(path, maxSearched)
				if err != nil {
					continue // a directory, or gone
				}
				searched++
				if holds(data, values) {
					in = append(in, path)
				}
			}
		}
	}
	item.Status, item.Found = decide(len(in) == 0, fmt.Sprintf("none of %d values in %d records", len(values), searched))
	if len(in) > 0 {
		item.Found = "in " + strings.Join(in[:min(len(in), most)], ", ")
	}
	return item
}

// holds says whether one of the values is in data, as it is or in base64.
func holds(data []byte, values [][]byte) bool {
	for _, v := range values {
		if bytes.Contains(data, v) || bytes.Contains(data, []byte(base64.StdEncoding.EncodeToString(v))) {
			return true
		}
	}
	return false
}

// manifestSecrets are the values of the Secrets in a directory of manifests.
func manifestSecrets(dir string) ([][]byte, error) {
	if dir == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	var out [][]byte
	for _, e := range entries {
		data, err := bounded(filepath.Join(dir, e.Name()), maxManifest)
		if err == nil {
			out = append(out, secretsOf(data)...)
		}
	}
	return out, nil
}

// secretsOf are the values of the Secrets in a manifest. What cannot be read is no Secret of any pod's either.
func secretsOf(manifest []byte) [][]byte {
	var out [][]byte
	docs := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifest)))
	for {
		doc, err := docs.Read()
		if err != nil {
			return out
		}
		var s struct {
			Kind       string            `json:"kind"`
			Data       map[string][]byte `json:"data"`
			StringData map[string]string `json:"stringData"`
		}
		if yaml.Unmarshal(doc, &s) != nil || s.Kind != "Secret" {
			continue
		}
		for _, v := range s.StringData {
			s.Data = with(s.Data, v)
		}
		for _, v := range s.Data {
			if len(v) >= leastValue {
				out = append(out, v)
			}
		}
	}
}

func with(m map[string][]byte, v string) map[string][]byte {
	if m == nil {
		m = map[string][]byte{}
	}
	m[" "+v] = []byte(v) // no key of a Secret has a space
	return m
}

// bounded reads a file that is no longer than most.
func bounded(path string, most int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.Join(err, errors.New("it is no file"))
	}
	return io.ReadAll(io.LimitReader(f, most))
}
