package file

import (
	"encoding/csv"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// notSettings are flags that say where the settings are.
var notSettings = []string{"config", "config-dir", "help"}

// Effective is what is in effect, as the two documents that would bring it about. With all it has the defaults, too;
// else only what files and the command line have said.
func (f *Files) Effective(flags *pflag.FlagSet, all bool) (kubeletDoc, berthDoc map[string]any) {
	kubeletDoc = map[string]any{"apiVersion": KubeletVersion, "kind": KubeletKind}
	if f.merged != nil {
		kubeletDoc = merge(kubeletDoc, f.merged)
	}
	berthDoc = map[string]any{"apiVersion": BerthVersion, "kind": BerthKind}
	named := map[string]bool{}
	for _, field := range Fields() {
		// What was converted cannot be read back; the file's is shown, and the setting is shown among berth's.
		fl := flags.Lookup(field.Flag)
		if fl == nil || field.Values != nil {
			continue
		}
		named[fl.Name] = true
		if all || said(fl) {
			put(kubeletDoc, strings.Split(field.Path, "."), valueOf(fl.Value))
		}
	}
	flags.VisitAll(func(fl *pflag.Flag) {
		if !named[fl.Name] && !slices.Contains(notSettings, fl.Name) && (all || said(fl)) {
			berthDoc[FieldName(fl.Name)] = valueOf(fl.Value)
		}
	})
	mask(kubeletDoc, berthDoc)
	return kubeletDoc, berthDoc
}

// headersFlag is the flag, and headersField the kubelet's field, of headers that may be credentials.
const (
	headersFlag  = "manifest-url-header"
	headersField = "staticPodURLHeader"
	masked       = "<masked>"
)

// mask hides what headers say, as kubelet's /configz does.
func mask(kubeletDoc, berthDoc map[string]any) {
	if headers, ok := kubeletDoc[headersField].(map[string]any); ok {
		hidden := map[string]any{}
		for name := range headers {
			hidden[name] = []string{masked}
		}
		kubeletDoc[headersField] = hidden
	}
	if headers, ok := berthDoc[FieldName(headersFlag)].([]string); ok {
		var hidden []string
		for _, h := range headers {
			name, _, _ := strings.Cut(h, ":")
			hidden = append(hidden, name+": "+masked)
		}
		berthDoc[FieldName(headersFlag)] = hidden
	}
}

// said tells whether a file or the command line has given a flag another value than its default.
func said(f *pflag.Flag) bool { return f.Changed || f.Value.String() != f.DefValue }

func put(doc map[string]any, path []string, value any) {
	for _, name := range path[:len(path)-1] {
		next, _ := doc[name].(map[string]any)
		next = maps.Clone(next)
		if next == nil {
			next = map[string]any{}
		}
		doc[name] = next
		doc = next
	}
	doc[path[len(path)-1]] = value
}

// valueOf is the value of a flag as a file would have it.
func valueOf(v pflag.Value) any {
	if list, ok := v.(pflag.SliceValue); ok {
		if v.Type() != "int32Slice" {
			return list.GetSlice()
		}
		out := []int64{}
		for _, s := range list.GetSlice() {
			n, err := strconv.ParseInt(s, 10, 64)
			if err != nil {
				return list.GetSlice()
			}
			out = append(out, n)
		}
		return out
	}
	s := v.String()
	switch v.Type() {
	case "stringToString":
		return stringMap(strings.TrimSuffix(strings.TrimPrefix(s, "["), "]"))
	case "bool":
		return s == "true"
	case "int", "int32", "int64", "float64":
		return json.Number(s)
	default:
		return s
	}
}

func stringMap(s string) map[string]string {
	out := map[string]string{}
	fields, err := csv.NewReader(strings.NewReader(s)).Read()
	if err != nil {
		return out // there is none
	}
	for _, f := range fields {
		if k, v, ok := strings.Cut(f, "="); ok {
			out[k] = v
		}
	}
	return out
}
