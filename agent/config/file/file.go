// Package file reads the agent's configuration files: a KubeletConfiguration as kubelet has it, and a
// BerthConfiguration for what kubelet has no name for. It turns both into the settings that flags have, by the flags'
// names, so that there is one list of settings with one set of rules.
package file

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kubelet "k8s.io/kubelet/config/v1beta1"
	sjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/berth-node/berth/internal/aliases"
	"github.com/berth-node/berth/internal/quantity"
)

// The kinds of documents.
const (
	KubeletVersion = "kubelet.config.k8s.io/v1beta1"
	KubeletKind    = "KubeletConfiguration"
	BerthVersion   = "config.berth.node/v1alpha1"
	BerthKind      = "BerthConfiguration"
)

// Suffix is what the names of files in a drop-in directory end with, as kubelet's.
const Suffix = ".conf"

// Files is what the files say together.
type Files struct {
	Kubelet *kubelet.KubeletConfiguration // nil: no file has one
	Berth   map[string]any                // by the names of fields

	names  []string // the files, in the order in which they were read
	merged map[string]any
}

// Read reads a file, and the files of a drop-in directory on top of it, in the order of their names. Either may be "".
// Of a field that several files have, the last is taken; lists are replaced, maps and structures are merged, null
// removes, as by kubelet.
func Read(path, dir string) (*Files, error) {
	f := &Files{Berth: map[string]any{}}
	if path != "" {
		f.names = append(f.names, path)
	}
	if dir != "" {
		more, err := dropIns(dir)
		if err != nil {
			return nil, err
		}
		f.names = append(f.names, more...)
	}
	for _, name := range f.names {
		if err := f.add(name); err != nil {
			return nil, err
		}
	}
	if f.merged == nil {
		return f, nil
	}
	data, err := json.Marshal(f.merged)
	if err != nil {
		return nil, err
	}
	f.Kubelet, err = strict(data)
	return f, err
}

func dropIns(dir string) ([]string, error) {
	var out []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(path, Suffix) {
			out = append(out, path)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read --config-dir: %w", err)
	}
	slices.Sort(out)
	return out, nil
}

// maxFile is how many bytes a file may have. One with all settings there are has some ten thousand.
const maxFile = 1 << 20

func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s has more than %d bytes", name, maxFile)
	}
	return data, err
}

// add puts the documents of one file on top of what there is. Each is checked alone, so that an error names its file.
func (f *Files) add(name string) error {
	data, err := readFile(name)
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	docs := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for n := 1; ; n++ {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = f.addDocument(doc)
		}
		if err != nil {
			return fmt.Errorf("read configuration %s, document %d: %w", name, n, err)
		}
	}
}

func (f *Files) addDocument(doc []byte) error {
	if err := aliases.Check(doc, 4*maxFile); err != nil {
		return err
	}
	data, err := yaml.YAMLToJSONStrict(doc)
	if err != nil {
		return err
	}
	var tree map[string]any
	if err := json.Unmarshal(data, &tree); err != nil {
		return errors.New("it is no YAML mapping")
	}
	if tree == nil {
		return nil // nothing but comments
	}
	version, _ := tree["apiVersion"].(string)
	kind, _ := tree["kind"].(string)
	switch {
	case version == KubeletVersion && kind == KubeletKind:
		if _, err := strict(data); err != nil {
			return err
		}
		f.merged = merge(f.merged, tree)
	case version == BerthVersion && kind == BerthKind:
		delete(tree, "apiVersion")
		delete(tree, "kind")
		f.Berth = merge(f.Berth, tree)
	default:
		return fmt.Errorf("apiVersion %q, kind %q: must be %s, %s or %s, %s", version, kind, KubeletVersion, KubeletKind,
			BerthVersion, BerthKind)
	}
	return nil
}

// strict decodes a KubeletConfiguration and refuses fields that it has not, with the name that was probably meant.
func strict(data []byte) (*kubelet.KubeletConfiguration, error) {
	out := &kubelet.KubeletConfiguration{}
	if errs := quantity.CheckJSON(data, out); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	problems, err := sjson.UnmarshalStrict(data, out)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, p := range problems {
		var field sjson.FieldError
		if !errors.As(p, &field) {
			errs = append(errs, p)
			continue
		}
		path := field.FieldPath()
		msg := p.Error()
		if s := closest(path, paths()); s != "" {
			msg += fmt.Sprintf(", did you mean %q?", s)
		}
		errs = append(errs, errors.New(msg))
	}
	return out, errors.Join(errs...)
}

// merge is RFC 7386's.
func merge(into, from map[string]any) map[string]any {
	out := maps.Clone(into)
	if out == nil {
		out = map[string]any{}
	}
	for k, v := range from {
		switch v := v.(type) {
		case nil:
			delete(out, k)
		case map[string]any:
			old, _ := out[k].(map[string]any)
			out[k] = merge(old, v)
		default:
			out[k] = v
		}
	}
	return out
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
