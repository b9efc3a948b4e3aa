package quantity

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	// maxDepth is how deep decoders go. What is deeper is theirs to refuse.
	maxDepth = 10000
	// maxErrors bounds what is said of one text.
	maxErrors = 20
	// maxShown bounds what is shown of one value.
	maxShown = 40
)

// CheckJSON names the quantities in a text that must not be decoded: into is a pointer to what it is about to be
// decoded into. It looks at the text and not at what became of it, because decoding is what takes long, and because of
// two equal keys both are decoded.
func CheckJSON(data []byte, into any) field.ErrorList {
	if !suspicious(data) && !escaped(data) {
		return nil // as nearly every text, which is not parsed for this then
	}
	s := &scan{tokens: json.NewDecoder(bytes.NewReader(data))}
	s.tokens.UseNumber()
	s.value(reflect.TypeOf(into), "", 0)
	return s.found
}

// suspicious says whether a text may have a costly quantity in it. A quantity is all of its string, and what its number
// ends with ends it, after one sign at most: the digests and UIDs that texts are full of, with an e between digits, are
// none.
func suspicious(data []byte) bool {
	for i := 0; i < len(data); {
		end := i
		for end < len(data) && (data[end] >= '0' && data[end] <= '9' || data[end] == '.') {
			end++
		}
		if end == i {
			i++
			continue
		}
		inWord := i > 0 && isLetter(data[i-1])
		if !inWord && (end-i > maxDigits || endsInLongExponent(data[end:])) {
			return true
		}
		i = end
	}
	return false
}

// escaped says whether a text has a character of a number that is not written as itself.
func escaped(data []byte) bool {
	for {
		at := bytes.Index(data, []byte(`\u00`))
		if at < 0 || len(data) < at+6 {
			return false
		}
		c, err := strconv.ParseUint(string(data[at+4:at+6]), 16, 8)
		if err == nil && (c >= '0' && c <= '9' || strings.IndexByte("+-.eE", byte(c)) >= 0) {
			return true
		}
		data = data[at+6:]
	}
}

func endsInLongExponent(text []byte) bool {
	if len(text) == 0 || text[0] != 'e' && text[0] != 'E' || !longExponent(text[1:]) {
		return false
	}
	rest := bytes.TrimLeft(bytes.TrimLeft(text[1:], "+-"), "0123456789")
	return len(rest) == 0 || !isLetter(rest[0]) && rest[0] != '-'
}

func isLetter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

type scan struct {
	tokens *json.Decoder
	found  field.ErrorList
}

// value reads the next value, which is to become a t: nil for what has no quantities in it. It says whether to go on.
func (s *scan) value(t reflect.Type, path string, depth int) bool {
	token, err := s.tokens.Token()
	if err != nil || depth > maxDepth || len(s.found) == maxErrors {
		return false
	}
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch token := token.(type) {
	case json.Delim:
		if token == '{' {
			return s.object(t, path, depth)
		}
		return s.list(t, path, depth)
	case string:
		s.scalar(t, path, token)
	case json.Number:
		s.scalar(t, path, token.String())
	}
	return true
}

func (s *scan) scalar(t reflect.Type, path, text string) {
	if isQuantity(t) && costly(text) {
		if len(text) > maxShown {
			text = strings.ToValidUTF8(text[:maxShown], "") + "..."
		}
		s.found = append(s.found, field.Invalid(field.NewPath(path), text, errCostly.Error()))
	}
}

func (s *scan) object(t reflect.Type, path string, depth int) bool {
	var fields map[string]reflect.Type
	if t != nil && t.Kind() == reflect.Struct {
		fields = jsonFields(t)
	}
	for s.tokens.More() {
		token, err := s.tokens.Token()
		if err != nil {
			return false
		}
		key, _ := token.(string)
		below, at := named(fields, key), strings.TrimPrefix(path+"."+key, ".")
		if t != nil && t.Kind() == reflect.Map {
			below, at = t.Elem(), fmt.Sprintf("%s[%s]", path, key)
		}
		if below == nil {
			at = "" // nobody asks for it
		}
		if !s.value(below, at, depth+1) {
			return false
		}
	}
	_, err := s.tokens.Token()
	return err == nil
}

func (s *scan) list(t reflect.Type, path string, depth int) bool {
	var below reflect.Type
	if t != nil && t.Kind() == reflect.Slice {
		below = t.Elem()
	}
	for i := 0; s.tokens.More(); i++ {
		at := ""
		if below != nil {
			at = fmt.Sprintf("%s[%d]", path, i)
		}
		if !s.value(below, at, depth+1) {
			return false
		}
	}
	_, err := s.tokens.Token()
	return err == nil
}

// named is the type of a field by a name in any case, in which some decoders take it.
func named(fields map[string]reflect.Type, name string) reflect.Type {
	if t, ok := fields[name]; ok {
		return t
	}
	for have, t := range fields {
		if strings.EqualFold(have, name) {
			return t
		}
	}
	return nil
}

func isQuantity(t reflect.Type) bool {
	return t == reflect.TypeFor[resource.Quantity]() || t == reflect.TypeFor[resource.QuantityValue]()
}

// jsonFields lists the fields of a structure by their names in JSON, those of inlined structures too.
func jsonFields(t reflect.Type) map[string]reflect.Type {
	out := map[string]reflect.Type{}
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		inlined := f.Type
		if inlined.Kind() == reflect.Pointer {
			inlined = inlined.Elem()
		}
		switch {
		case name == "" && f.Anonymous && inlined.Kind() == reflect.Struct:
			for name, of := range jsonFields(inlined) {
				if _, outer := out[name]; !outer {
					out[name] = of
				}
			}
		case name == "":
			out[f.Name] = f.Type
		case name != "-":
			out[name] = f.Type
		}
	}
	return out
}
