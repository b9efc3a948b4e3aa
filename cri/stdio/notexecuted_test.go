package stdio

import (
	"errors"
	"testing"
)

// TestNotExecuted: what a program is called must not pass for what went wrong, nor a failure of the runtime for that of
// a program.
func TestNotExecuted(t *testing.T) {
	for text, want := range map[string]int32{
		`exec in container x: exec: "a": executable file not found in $PATH`:                    127,
		`exec in container x: exec: "a": stat a: no such file or directory`:                     127,
		`exec in container x: exec: "a": permission denied`:                                     126,
		`exec in container x: exec: "b": permission denied`:                                     0,
		`exec in container x: chdir to cwd ("/a") set in config.json failed: permission denied`: 0,
		`exec in container x: open /run/a: no such file or directory`:                           0,
		"executable file `a` not found in $PATH: No such file or directory":                     127,
		`keeper is gone`: 0,
	} {
		got, ok := NotExecuted(errors.New(text), []string{"a", "b"})
		if got.Code != want || ok != (want != 0) {
			t.Errorf("%s: got %+v, %v", text, got, ok)
		}
	}
	if _, ok := NotExecuted(nil, []string{"a"}); ok {
		t.Error("no error was taken for one")
	}
}
