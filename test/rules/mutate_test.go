package rules

import (
	"math/rand/v2"
	"reflect"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// mutator changes objects at random, by their types, so that fields that no sample has are tried too.
type mutator struct {
	*rand.Rand
	words   map[reflect.Type][]string // the constants that the API has of a type
	strings []string                  // what stands in the samples of the kind
}

// common is what tells rules of names, keys, paths, addresses and numbers apart.
var common = []string{
	"", "a", "b", "A_B", "-bad", "foo.example.com", "example.com/foo", "example.com/foo/bar", "kubernetes.io/foo", "a b",
	"1.2.3.4", "0.0.0.0", "127.0.0.1", "fd00::1", "010.0.0.1", "10.0.0.0/8", "10.0.0.1/8", "fd00::/64", "*", "*.example.com",
	"/abs/path", "rel/path", "../up", "80", "http", "0", "-1", "12345", "https://example.com/x", "spec.nodeName",
	"cpu", "memory", "pods", "requests.cpu", "Exact", "name", "default", "system:foo", "1", "true", "None",
	strings.Repeat("x", 64), strings.Repeat("x", 254),
}

func (m *mutator) word(t reflect.Type) string {
	if w := m.words[t]; len(w) > 0 && m.IntN(4) > 0 {
		return w[m.IntN(len(w))]
	}
	if len(m.strings) > 0 && m.IntN(3) == 0 {
		return m.strings[m.IntN(len(m.strings))]
	}
	return common[m.IntN(len(common))]
}

var numbers = []int64{0, 1, -1, 2, 5, 30, 100, 101, 443, 3600, 30000, 65535, 65536, 70000, 1_000_000_001, 1<<31 - 1}

var quantities = []string{"0", "1", "-1", "500m", "1Gi", "2Mi", "1", "100m", "1.5", "10Gi", "1m"}

// mutate changes one thing somewhere below v, which must be settable.
func (m *mutator) mutate(v reflect.Value) {
	switch v.Interface().(type) {
	case metav1.Time, metav1.MicroTime, resource.Quantity, intstr.IntOrString, runtime.RawExtension, metav1.ObjectMeta:
		m.leaf(v)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		f := v.Field(m.IntN(v.NumField()))
		if n := v.Type().Field(m.IntN(v.NumField())).Name; n == "TypeMeta" {
			f = v.Field(v.NumField() - 1)
		}
		if f.Type() == reflect.TypeFor[metav1.TypeMeta]() || f.Type() == reflect.TypeFor[metav1.ObjectMeta]() && m.IntN(5) > 0 {
			f = v.Field(min(2, v.NumField()-1))
		}
		m.mutate(f)
	case reflect.Pointer:
		switch {
		case v.IsNil():
			v.Set(m.fill(v.Type(), 3))
		case m.IntN(4) == 0:
			v.SetZero()
		default:
			m.mutate(v.Elem())
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			m.leaf(v)
			return
		}
		switch n := v.Len(); {
		case n == 0 || m.IntN(6) == 0:
			v.Set(reflect.Append(v, m.fill(v.Type().Elem(), 3)))
		case m.IntN(8) == 0:
			v.Set(reflect.Append(v, v.Index(m.IntN(n))))
		case m.IntN(8) == 0:
			v.SetZero()
		case m.IntN(8) == 0:
			v.Set(v.Slice(0, n-1))
		default:
			m.mutate(v.Index(m.IntN(n)))
		}
	case reflect.Map:
		m.mutateMap(v)
	default:
		m.leaf(v)
	}
}

func (m *mutator) mutateMap(v reflect.Value) {
	keys := v.MapKeys()
	switch {
	case len(keys) == 0 || m.IntN(3) == 0:
		if v.IsNil() {
			v.Set(reflect.MakeMap(v.Type()))
		}
		v.SetMapIndex(m.fill(v.Type().Key(), 1), m.fill(v.Type().Elem(), 3))
	case m.IntN(3) == 0:
		v.SetMapIndex(keys[m.IntN(len(keys))], reflect.Value{})
	default:
		k := keys[m.IntN(len(keys))]
		e := reflect.New(v.Type().Elem()).Elem()
		e.Set(v.MapIndex(k))
		m.mutate(e)
		v.SetMapIndex(k, e)
	}
}

func (m *mutator) leaf(v reflect.Value) {
	if m.IntN(5) == 0 {
		v.SetZero()
		return
	}
	v.Set(m.fill(v.Type(), 1))
}

// fill makes a value: deep says how far below it there is anything.
func (m *mutator) fill(t reflect.Type, deep int) reflect.Value {
	v := reflect.New(t).Elem()
	switch v.Interface().(type) {
	case metav1.Time:
		v.Set(reflect.ValueOf(metav1.NewTime(time.Unix(1_700_000_000, 0).UTC())))
		return v
	case metav1.MicroTime:
		v.Set(reflect.ValueOf(metav1.NewMicroTime(time.Unix(1_700_000_000, 0).UTC())))
		return v
	case resource.Quantity:
		v.Set(reflect.ValueOf(resource.MustParse(quantities[m.IntN(len(quantities))])))
		return v
	case intstr.IntOrString:
		if m.IntN(2) == 0 {
			v.Set(reflect.ValueOf(intstr.FromInt32(int32(numbers[m.IntN(len(numbers))]))))
		} else {
			v.Set(reflect.ValueOf(intstr.FromString([]string{"25%", "0%", "101%", "x", "http", "http"}[m.IntN(6)])))
		}
		return v
	case runtime.RawExtension:
		v.Set(reflect.ValueOf(runtime.RawExtension{Raw: []byte(`{"apiVersion":"v1","kind":"A"}`)}))
		return v
	case metav1.ObjectMeta:
		o := *v.Addr().Interface().(*metav1.ObjectMeta)
		if o.Name = "a"; m.IntN(2) == 0 {
			o.Name = m.word(nil)
		}
		if m.IntN(8) > 0 {
			o.Namespace = "default"
		}
		switch m.IntN(4) {
		case 0:
			o.Labels = map[string]string{m.word(nil): m.word(nil)}
		case 1:
			o.Annotations = map[string]string{m.word(nil): m.word(nil)}
		case 2:
			o.GenerateName = m.word(nil)
		}
		v.Set(reflect.ValueOf(o))
		return v
	}
	switch t.Kind() {
	case reflect.String:
		v.SetString(m.word(t))
	case reflect.Bool:
		v.SetBool(m.IntN(2) == 0)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(numbers[m.IntN(len(numbers))])
	case reflect.Uint8:
		v.SetUint(uint64('a'))
	case reflect.Pointer:
		v.Set(reflect.New(t.Elem()))
		v.Elem().Set(m.fill(t.Elem(), deep))
	case reflect.Struct:
		for i := range t.NumField() {
			if deep > 0 && t.Field(i).IsExported() && m.IntN(3) > 0 {
				v.Field(i).Set(m.fill(t.Field(i).Type, deep-1))
			}
		}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			v.SetBytes([]byte(m.word(nil)))
			break
		}
		if deep <= 0 {
			break
		}
		for range m.IntN(2) + 1 {
			v.Set(reflect.Append(v, m.fill(t.Elem(), deep-1)))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(t))
		if deep > 0 {
			v.SetMapIndex(m.fill(t.Key(), 1), m.fill(t.Elem(), deep-1))
		}
	}
	return v
}

// stringsOf is all strings below v.
func stringsOf(v reflect.Value, into map[string]bool) {
	switch v.Kind() {
	case reflect.String:
		into[v.String()] = true
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			stringsOf(v.Elem(), into)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				stringsOf(v.Field(i), into)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			stringsOf(v.Index(i), into)
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			stringsOf(k, into)
			stringsOf(v.MapIndex(k), into)
		}
	}
}
