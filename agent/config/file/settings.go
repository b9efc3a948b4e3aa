package file

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	kubelet "k8s.io/kubelet/config/v1beta1"
)

// leaf is a field of the structure that has a value of its own.
type leaf struct {
	path  string
	value reflect.Value // not valid where a pointer on the way to it is nil
}

// whole are the structures that are one value.
var whole = []reflect.Type{
	reflect.TypeFor[metav1.Duration](), reflect.TypeFor[resource.QuantityValue](), reflect.TypeFor[logsapi.TimeOrMetaDuration](),
}

// leaves walks a structure by the names of its fields in the file.
func leaves(t reflect.Type, v reflect.Value, path string, fn func(leaf)) {
	if t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct && !slices.Contains(whole, t.Elem()) {
		t = t.Elem()
		if v.IsValid() {
			v = v.Elem()
		}
	}
	if t.Kind() != reflect.Struct || slices.Contains(whole, t) {
		fn(leaf{path, v})
		return
	}
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Type == reflect.TypeFor[metav1.TypeMeta]() {
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		below := path
		switch {
		case name == "": // inlined
		case path == "":
			below = name
		default:
			below += "." + name
		}
		var fv reflect.Value
		if v.IsValid() {
			fv = v.Field(i)
		}
		leaves(f.Type, fv, below, fn)
	}
}

// paths are all fields of KubeletConfiguration that have values.
func paths() []string {
	var out []string
	leaves(reflect.TypeFor[kubelet.KubeletConfiguration](), reflect.Value{}, "",
		func(l leaf) { out = append(out, l.path) })
	return out
}

// given is the value that a file gives a field, as JSON has it; false when none does. A field that is no pointer cannot
// be told from one that was left out when it has its zero value, which for kubelet means its default.
func (l leaf) given() (any, bool) {
	if !l.value.IsValid() || l.value.IsZero() {
		return nil, false
	}
	data, err := json.Marshal(l.value.Interface())
	if err != nil {
		return nil, false
	}
	var v any
	if err := json.Unmarshal(data, &v); err != nil || l.value.Kind() != reflect.Pointer &&
		(v == "0" || v == "0s" || v == float64(0)) {
		return nil, false
	}
	return v, true
}

// Apply makes the settings of flags that the command line has not given what the files say. It returns what the fields
// of the files do not do here.
func (f *Files) Apply(flags *pflag.FlagSet) ([]string, error) {
	var ignored []string
	var errs []error
	if f.Kubelet != nil {
		// A kubelet with a file serves on its ports; that berth has none is for those who have never asked for a
		// kubelet.
		for flag, port := range map[string]string{"port": "10250", "healthz-port": "10248"} {
			errs = append(errs, set(flags, flag, []string{port}))
		}
		table := map[string]Field{}
		for _, field := range Fields() {
			table[field.Path] = field
		}
		leaves(reflect.TypeFor[kubelet.KubeletConfiguration](), reflect.ValueOf(*f.Kubelet), "", func(l leaf) {
			value, ok := l.given()
			if !ok {
				return
			}
			says, err := table[l.path].apply(flags, value)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", l.path, err))
			}
			if says != "" {
				ignored = append(ignored, l.path+": "+says)
			}
		})
	}
	errs = append(errs, f.applyBerth(flags))
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("configuration of %s: %w", strings.Join(f.names, ", "), err)
	}
	return ignored, nil
}

// apply returns what a field's value does not do.
func (f Field) apply(flags *pflag.FlagSet, value any) (string, error) {
	if f.Flag == "" {
		if slices.Contains(f.Same, text(value)) {
			return "", nil
		}
		return f.Says, nil
	}
	if flags.Lookup(f.Flag) == nil {
		return notYet, nil
	}
	values, err := f.convert(value)
	if err != nil {
		return "", err
	}
	return "", set(flags, f.Flag, values)
}

func (f Field) convert(value any) ([]string, error) {
	if f.Values != nil {
		return f.Values(value)
	}
	return texts(value), nil
}

// applyBerth takes the fields of BerthConfiguration, each of which is named as its flag.
func (f *Files) applyBerth(flags *pflag.FlagSet) error {
	known := map[string]string{}
	flags.VisitAll(func(fl *pflag.Flag) { known[FieldName(fl.Name)] = fl.Name })
	var errs []error
	for _, name := range sorted(f.Berth) {
		flag, ok := known[name]
		if !ok {
			msg := fmt.Sprintf("unknown field %q of %s", name, BerthKind)
			if s := closest(name, sorted(known)); s != "" {
				msg += fmt.Sprintf(", did you mean %q?", s)
			}
			errs = append(errs, errors.New(msg))
			continue
		}
		if err := set(flags, flag, texts(f.Berth[name])); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// FieldName is the name that a flag's setting has in a file: "log-max-size" is logMaxSize.
func FieldName(flag string) string {
	words := strings.Split(flag, "-")
	for i, w := range words[1:] {
		words[i+1] = strings.ToUpper(w[:1]) + w[1:]
	}
	return strings.Join(words, "")
}

// set gives a flag values, unless the command line has given it some.
func set(flags *pflag.FlagSet, name string, values []string) error {
	f := flags.Lookup(name)
	if f == nil || f.Changed {
		return nil
	}
	if list, ok := f.Value.(pflag.SliceValue); ok {
		if err := list.Replace(values); err != nil {
			return fmt.Errorf("%q: %w", values, err)
		}
		return nil
	}
	if f.Value.Type() == "stringToString" {
		if len(values) == 0 {
			return nil // the flag has no way to say so
		}
		var b strings.Builder
		w := csv.NewWriter(&b)
		if err := w.Write(values); err != nil {
			return err
		}
		w.Flush()
		values = []string{strings.TrimSuffix(b.String(), "\n")}
	}
	if len(values) != 1 {
		return fmt.Errorf("%q: must be one value", values)
	}
	if err := f.Value.Set(values[0]); err != nil {
		return fmt.Errorf("%q: %w", values[0], err)
	}
	return nil
}

// texts is a value as flags are given it, a list one by one and a map as KEY=VALUE.
func texts(value any) []string {
	switch v := value.(type) {
	case []any:
		out := []string{}
		for _, one := range v {
			out = append(out, text(one))
		}
		return out
	case map[string]any:
		out := []string{}
		for _, k := range sorted(v) {
			out = append(out, k+"="+text(v[k]))
		}
		return out
	default:
		return []string{text(value)}
	}
}

func text(value any) string {
	if s, ok := value.(string); ok {
		return s
	}
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	return string(data)
}

// closest is the name that was probably meant, "" when none is near.
func closest(name string, names []string) string {
	best, least := "", len(name)/3+1
	for _, n := range names {
		if strings.EqualFold(n, name) {
			return n
		}
		if d := distance(name, n); d < least {
			best, least = n, d
		}
	}
	return best
}

// distance is Levenshtein's: how many characters must be put in, taken out or changed.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
