package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// What a manifest says, and nothing that reads it would mind.

// errSecond says that there is a document that would be passed over.
var errSecond = errors.New("what follows the first document in it is not read: before each one there must be a line " +
	"with --- alone, and lines end with a line feed, in UTF-8")

// checkSingle refuses a text that has several documents for the YAML parser, which reads the first one of them: it
// takes more for a mark or for the end of a line than people do.
func checkSingle(text []byte) error {
	if !mayHide(text) {
		return nil
	}
	d := yamlv3.NewDecoder(bytes.NewReader(text))
	var node yamlv3.Node
	if d.Decode(&node) != nil {
		return nil // as whoever reads it says
	}
	if err := d.Decode(&node); !errors.Is(err, io.EOF) {
		return errSecond
	}
	return nil
}

// mayHide says whether there is an end of a document in a text, or a line of it ends in another way than with a line
// feed.
func mayHide(text []byte) bool {
	for _, mark := range []string{"\n...", "\u0085", "\u2028", "\u2029"} {
		if bytes.Contains(text, []byte(mark)) {
			return true
		}
	}
	utf16 := bytes.HasPrefix(text, []byte("\xff\xfe")) || bytes.HasPrefix(text, []byte("\xfe\xff"))
	return utf16 || bytes.HasPrefix(text, []byte("...")) ||
		bytes.Count(text, []byte("\r")) != bytes.Count(text, []byte("\r\n"))
}

// checkQuantities refuses quantities that are too large for what counts them. Of those that could not be calculated in
// any time the text was refused before.
func checkQuantities(o any) field.ErrorList {
	var errs field.ErrorList
	walkQuantities(reflect.ValueOf(o), "", func(path string, q *resource.Quantity) {
		most := float64(math.MaxInt64)
		if strings.HasSuffix(path, "cpu]") {
			most /= 1000 // it is counted in thousandths
		}
		if math.Abs(q.AsApproximateFloat64()) >= most {
			errs = append(errs, field.Invalid(field.NewPath(path), q.String(), fmt.Sprintf("must be less than %.3g", most)))
		}
	})
	return errs
}

var quantityType = reflect.TypeFor[resource.Quantity]()

func walkQuantities(v reflect.Value, path string, visit func(string, *resource.Quantity)) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			walkQuantities(v.Elem(), path, visit)
		}
	case reflect.Slice:
		if kind := v.Type().Elem().Kind(); kind != reflect.Struct && kind != reflect.Pointer {
			return
		}
		for i := range v.Len() {
			walkQuantities(v.Index(i), fmt.Sprintf("%s[%d]", path, i), visit)
		}
	case reflect.Map:
		if v.Type().Elem() != quantityType {
			return
		}
		for key, value := range v.Seq2() {
			q := value.Interface().(resource.Quantity) // it is the map's
			visit(fmt.Sprintf("%s[%s]", path, key), &q)
		}
	case reflect.Struct:
		if v.Type() == quantityType {
			q := v.Interface().(resource.Quantity) // see above
			visit(path, &q)
			return
		}
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if !f.IsExported() {
				continue
			}
			below := path
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
				below = strings.TrimPrefix(path+"."+name, ".")
			}
			walkQuantities(v.Field(i), below, visit)
		}
	}
}
