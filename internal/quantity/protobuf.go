package quantity

import (
	"reflect"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// CheckProtobuf is CheckJSON for a message: into is a pointer to what it is about to be decoded into. What it says has
// the numbers of fields.
func CheckProtobuf(data []byte, into any) field.ErrorList {
	if !costly(data) {
		return nil // as nearly every message, which is not parsed for this then
	}
	var s scan
	s.message(data, reflect.TypeOf(into), "", 0)
	return s.found
}

// message reads a message that is to become a t.
func (s *scan) message(data []byte, t reflect.Type, path string, depth int) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if depth > maxDepth || t.Kind() != reflect.Struct && t.Kind() != reflect.Map {
		return
	}
	fields := map[protowire.Number]reflect.Type{}
	if !isQuantity(t) {
		fields = protobufFields(t)
	}
	for len(data) > 0 && len(s.found) < maxErrors {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return // the decoder says what is wrong with it
		}
		data = data[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, kind, data); n < 0 {
				return
			}
			data = data[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(data)
		if n < 0 {
			return
		}
		data = data[n:]
		switch below := fields[number]; {
		case isQuantity(t):
			s.scalar(t, path, string(value))
		case below != nil:
			s.message(value, below, strings.TrimPrefix(path+"."+strconv.Itoa(int(number)), "."), depth+1)
		}
	}
}

// protobufFields are the types of the fields of a structure by their numbers. A map is a list of pairs, of which the
// second is the value.
func protobufFields(t reflect.Type) map[protowire.Number]reflect.Type {
	out := map[protowire.Number]reflect.Type{}
	if t.Kind() == reflect.Map {
		out[2] = t.Elem()
		return out
	}
	for f := range t.Fields() {
		parts := strings.Split(f.Tag.Get("protobuf"), ",")
		if len(parts) < 2 {
			continue
		}
		if n, err := strconv.ParseInt(parts[1], 10, 32); err == nil {
			out[protowire.Number(n)] = f.Type
		}
	}
	return out
}
