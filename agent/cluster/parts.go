package cluster

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/berth-node/berth/internal/encoded"
)

// A container of which nothing is said has two bytes of a message, and four hundred of memory. So the parts of what is
// long are counted before it is decoded: what is not has no more than it may.
const (
	maxParts  = 200_000       // of an object
	listParts = 10 * maxParts // of a list of them
	long      = 2 * maxParts
)

// crowded refuses an object, of a type that t is a pointer to, that has too many parts.
func crowded(e *encoded.Object, t reflect.Type) error {
	most := maxParts
	if strings.HasSuffix(e.Kind.Kind, "List") {
		most = listParts
	}
	left := most
	if e.Message != nil {
		c := counter{left: most, fields: map[reflect.Type]parts{}}
		c.count(e.Message, t)
		left = c.left
	} else {
		left -= values(e.Text)
	}
	if left < 0 {
		return fmt.Errorf("it has more than %d parts", most)
	}
	return nil
}

// values counts objects, lists and nulls of JSON.
func values(text []byte) (n int) {
	quoted, escaped := false, false
	for _, c := range text {
		switch {
		case escaped:
			escaped = false
		case quoted:
			quoted, escaped = c != '"', c == '\\'
		case c == '"':
			quoted = true
		case c == '{' || c == '[' || c == 'n':
			n++
		}
	}
	return n
}

// parts are the types of the fields of a structure that are structures or maps, by their numbers.
type parts map[protowire.Number]reflect.Type

// counter counts messages until none is left.
type counter struct {
	left   int
	fields map[reflect.Type]parts
}

// count counts those in a message that is to become a t.
func (c *counter) count(data []byte, t reflect.Type) {
	if len(data) == 0 {
		return
	}
	t = structOf(t)
	fields, known := c.fields[t]
	if !known {
		fields = partsOf(t)
		c.fields[t] = fields
	}
	for len(data) > 0 && len(fields) > 0 && c.left >= 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return // the decoder says what is wrong with it
		}
		data = data[n:]
		if n = protowire.ConsumeFieldValue(number, kind, data); n < 0 {
			return
		}
		if below := fields[number]; below != nil && kind == protowire.BytesType {
			c.left--
			value, _ := protowire.ConsumeBytes(data)
			c.count(value, below)
		}
		data = data[n:]
	}
}

// structOf is what pointers and lists of it lead to.
func structOf(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	return t
}

// partsOf finds the parts of a type. A map is a list of pairs, of which the second is the value.
func partsOf(t reflect.Type) parts {
	out := parts{}
	add := func(number int64, of reflect.Type) {
		if k := structOf(of).Kind(); k == reflect.Struct || k == reflect.Map {
			out[protowire.Number(number)] = of
		}
	}
	switch t.Kind() {
	case reflect.Map:
		add(2, t.Elem())
	case reflect.Struct:
		for f := range t.Fields() {
			if parts := strings.Split(f.Tag.Get("protobuf"), ","); len(parts) > 1 {
				if n, err := strconv.ParseInt(parts[1], 10, 32); err == nil {
					add(n, f.Type)
				}
			}
		}
	default:
	}
	return out
}
