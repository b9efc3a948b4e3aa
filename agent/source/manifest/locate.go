package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxLocate bounds the text that is parsed once more only to say a line number.
const maxLocate = 256 << 10

// mismatches names every field of v whose type is not the one into has. Decoders stop at the first, and leave out the
// index in a list, or the field altogether where a type decodes itself.
func (p position) mismatches(v any, into any) []string {
	var errs field.ErrorList
	mismatch(v, reflect.TypeOf(into).Elem(), nil, &errs)
	if p.hide {
		for _, e := range errs {
			e.BadValue = "<not shown>"
			e.Detail, _, _ = strings.Cut(e.Detail, ", as in ")
		}
	}
	return p.sayAll(errs)
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

func mismatch(v any, t reflect.Type, path *field.Path, errs *field.ErrorList) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if v == nil || len(*errs) > maxMessages {
		return
	}
	self := reflect.PointerTo(t).Implements(unmarshaler)
	switch {
	case !self && t.Kind() == reflect.Struct:
		m, ok := v.(map[string]any)
		if !ok {
			break
		}
		fields := jsonFields(t)
		for _, name := range slices.Sorted(maps.Keys(m)) {
			if ft, known := fields[name]; known {
				mismatch(m[name], ft, child(path, name), errs)
			}
		}
		return
	case !self && t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8:
		l, ok := v.([]any)
		if !ok {
			break
		}
		for i, e := range l {
			mismatch(e, t.Elem(), path.Index(i), errs)
		}
		return
	case !self && t.Kind() == reflect.Map:
		m, ok := v.(map[string]any)
		if !ok {
			break
		}
		for _, k := range slices.Sorted(maps.Keys(m)) {
			mismatch(m[k], t.Elem(), path.Key(k), errs)
		}
		return
	}
	data, err := json.Marshal(v)
	if err == nil && json.Unmarshal(data, reflect.New(t).Interface()) == nil {
		return
	}
	if path == nil {
		path = field.NewPath("manifest")
	}
	*errs = append(*errs, field.TypeInvalid(path, v, wants(t, v)))
}

func child(path *field.Path, name string) *field.Path {
	if path == nil {
		return field.NewPath(name)
	}
	return path.Child(name)
}

// jsonFields lists the fields of a struct by their JSON names, those of inlined structs too.
func jsonFields(t reflect.Type) map[string]reflect.Type {
	out := map[string]reflect.Type{}
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" && f.Anonymous {
			maps.Copy(out, jsonFields(f.Type))
		} else if name != "" && name != "-" {
			out[name] = f.Type
		}
	}
	return out
}

// wants says what would be right for a field of type t that holds v.
func wants(t reflect.Type, v any) string {
	switch t {
	case reflect.TypeFor[resource.Quantity]():
		return "must be a quantity such as 100m, 2 or 128Mi"
	case reflect.TypeFor[intstr.IntOrString]():
		return "must be a number or a name"
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime]():
		return "must be a time such as 2026-01-31T12:00:00Z"
	case reflect.TypeFor[metav1.Duration]():
		return "must be a duration such as 90s"
	}
	switch t.Kind() {
	case reflect.String:
		switch v.(type) {
		case map[string]any, []any:
			return "must be a string"
		case bool:
			// It may have been written as yes, on or y.
			return "must be a string: put quotes around it"
		}
		return fmt.Sprintf("must be a string: put quotes around it, as in %q", fmt.Sprint(v))
	case reflect.Bool:
		return "must be true or false"
	case reflect.Int32:
		return "must be a whole number from -2147483648 to 2147483647"
	case reflect.Int64, reflect.Int:
		return "must be a whole number"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "must be base64 text"
		}
		return "must be a list"
	case reflect.Struct, reflect.Map:
		return "must be a map of fields"
	}
	return "has the wrong type"
}

// lineOf finds the line of a field, or of the nearest thing around it that the text has.
func (p position) lineOf(path string) int {
	n := p.tree()
	if n == nil {
		return p.line
	}
	line := n.Line
	for _, step := range append(steps(p.path), steps(path)...) {
		next, l := descend(n, step)
		if next == nil {
			break
		}
		n, line = next, l
	}
	return p.line + line - 1
}

// parseTree parses a document for its lines only; nil when there is nothing to find.
func parseTree(text []byte) *yamlv3.Node {
	var root yamlv3.Node
	if len(text) > maxLocate || yamlv3.NewDecoder(bytes.NewReader(text)).Decode(&root) != nil || len(root.Content) == 0 {
		return nil
	}
	return root.Content[0]
}

// descend returns the child of n that step names, and the line it begins at: a key's own line, not that of its value.
func descend(n *yamlv3.Node, step string) (*yamlv3.Node, int) {
	if n.Kind == yamlv3.AliasNode {
		n = n.Alias
	}
	switch n.Kind {
	case yamlv3.MappingNode:
		// Backwards, because of two equal keys the last one counts.
		for i := len(n.Content) - 2; i >= 0; i -= 2 {
			if n.Content[i].Value == step {
				return n.Content[i+1], n.Content[i].Line
			}
		}
	case yamlv3.SequenceNode:
		if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(n.Content) {
			return n.Content[i], n.Content[i].Line
		}
	}
	return nil, 0
}

// steps splits a path such as spec.containers[0].resources.limits[nvidia.com/gpu]; what is in brackets is one step.
func steps(path string) []string {
	var out []string
	for path != "" {
		switch path[0] {
		case '.':
			path = path[1:]
		case '[':
			end := strings.IndexByte(path, ']')
			if end < 0 {
				return append(out, path[1:])
			}
			out = append(out, path[1:end])
			path = path[end+1:]
		default:
			end := strings.IndexAny(path, ".[")
			if end < 0 {
				return append(out, path)
			}
			out = append(out, path[:end])
			path = path[end:]
		}
	}
	return out
}
