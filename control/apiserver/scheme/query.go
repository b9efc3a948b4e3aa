package scheme

import (
	"fmt"
	"reflect"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// setField sets a field to the values that a parameter has. As with Kubernetes a flag that is named without a value is
// on, and of several values of one that takes one the first counts.
func setField(f reflect.Value, values []string) error {
	if f.Kind() == reflect.Pointer {
		if values[0] == "" && f.Type().Elem().Kind() != reflect.String {
			return nil
		}
		v := reflect.New(f.Type().Elem())
		if err := setField(v.Elem(), values); err != nil {
			return err
		}
		f.Set(v)
		return nil
	}
	text := values[0]
	switch {
	case f.Type() == reflect.TypeFor[metav1.Time]():
		t := f.Addr().Interface().(*metav1.Time)
		return t.UnmarshalQueryParameter(text)
	case f.Kind() == reflect.String:
		f.SetString(text)
	case f.Kind() == reflect.Bool:
		f.SetBool(text != "false" && text != "0")
	case f.Kind() == reflect.Int64 || f.Kind() == reflect.Int32:
		n, err := strconv.ParseInt(text, 10, f.Type().Bits())
		if err != nil {
			return err
		}
		f.SetInt(n)
	case f.Kind() == reflect.Slice && f.Type().Elem().Kind() == reflect.String:
		f.Set(reflect.ValueOf(append([]string(nil), values...)))
	case f.Kind() == reflect.Slice && f.Type().Elem().Kind() == reflect.Int32:
		for _, one := range values {
			n, err := strconv.ParseInt(one, 10, 32)
			if err != nil {
				return err
			}
			f.Set(reflect.Append(f, reflect.ValueOf(int32(n))))
		}
	default:
		return fmt.Errorf("a %s is not read from a query", f.Type())
	}
	return nil
}
