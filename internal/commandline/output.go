package commandline

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// schemaVersion changes when a field of what the commands write for programs goes or means something else; that there
// are more changes nothing.
const schemaVersion = 1

// Output is the flag -o of a command: a table for people, or all there is for programs.
type Output struct {
	form  string
	forms []string
}

// AddFlag gives cmd the flag, which takes json and yaml, and more than these.
func (o *Output) AddFlag(cmd *cobra.Command, more ...string) {
	o.forms = append(more, "json", "yaml")
	cmd.Flags().VarP(o, "output", "o", o.list())
	// It fails for a flag that is not there.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(o.forms, cobra.ShellCompDirectiveNoFileComp))
}

// OutputOf is the flag -o that a command was given by [Output.AddFlag].
func OutputOf(cmd *cobra.Command) (*Output, error) {
	if f := cmd.Flags().Lookup("output"); f != nil {
		if o, ok := f.Value.(*Output); ok {
			return o, nil
		}
	}
	return nil, fmt.Errorf("%s has no flag -o", cmd.CommandPath())
}

func (o *Output) list() string {
	last := len(o.forms) - 1
	return strings.Join(o.forms[:last], ", ") + " or " + o.forms[last]
}

// String implements [pflag.Value]: the form that was asked for, "" when none was.
func (o *Output) String() string { return o.form }

// Type implements [pflag.Value].
func (o *Output) Type() string { return "string" }

// Set implements [pflag.Value].
func (o *Output) Set(form string) error {
	if !slices.Contains(o.forms, form) {
		return errors.New("must be " + o.list())
	}
	o.form = form
	return nil
}

// Machines says whether the output is for programs.
func (o *Output) Machines() bool { return o.form == "json" || o.form == "yaml" }

// Print writes v, which is an object in JSON, for programs, or has table write to w what people want to see.
func (o *Output) Print(w io.Writer, v any, table func(w io.Writer) error) error {
	if !o.Machines() {
		return table(Visible(w))
	}
	text, err := encode(v)
	if err == nil && o.form == "yaml" {
		text, err = yaml.JSONToYAML(text)
	}
	if err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	_, err = fmt.Fprintln(Visible(w), strings.TrimSuffix(string(text), "\n"))
	return err
}

// encode is v in JSON, with the version of its schema before all, lists where there is nothing in them, and no
// character in it that a terminal acts upon.
func encode(v any) ([]byte, error) {
	whole := reflect.New(reflect.TypeOf(v))
	whole.Elem().Set(reflect.ValueOf(v))
	emptyLists(whole)
	text, err := json.Marshal(whole.Interface())
	if err != nil {
		return nil, err
	}
	rest, ok := bytes.CutPrefix(text, []byte("{"))
	if !ok {
		return nil, fmt.Errorf("%T is no object in JSON", v)
	}
	out := fmt.Appendf(nil, `{"schemaVersion":%d`, schemaVersion)
	if !bytes.Equal(rest, []byte("}")) {
		out = append(out, ',')
	}
	var lines bytes.Buffer
	if err := json.Indent(&lines, append(out, rest...), "", "    "); err != nil {
		return nil, err
	}
	return EscapedJSON(lines.Bytes()), nil
}

var marshaler = reflect.TypeFor[json.Marshaler]()

// emptyLists makes each list and table in v that is nil one of nothing: programs need not tell null from it.
func emptyLists(v reflect.Value) {
	if !v.IsValid() || v.Kind() != reflect.Pointer && v.CanInterface() && v.Type().Implements(marshaler) {
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		emptyLists(v.Elem())
	case reflect.Struct:
		for _, f := range v.Fields() {
			if f.CanSet() {
				emptyLists(f)
			}
		}
	case reflect.Slice:
		if v.IsNil() {
			v.Set(reflect.MakeSlice(v.Type(), 0, 0))
		}
		for i := range v.Len() {
			emptyLists(v.Index(i))
		}
	case reflect.Map:
		if v.IsNil() {
			v.Set(reflect.MakeMap(v.Type()))
		}
		for _, k := range v.MapKeys() {
			e := reflect.New(v.Type().Elem()).Elem()
			e.Set(v.MapIndex(k))
			emptyLists(e)
			v.SetMapIndex(k, e)
		}
	}
}
