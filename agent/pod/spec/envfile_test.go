package spec

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestParseEnvFile(t *testing.T) {
	for text, want := range map[string]map[string]string{
		"":                                   {},
		"\n \t\n# A='1'\n":                   {},
		"A='1'":                              {"A": "1"},
		" A='1'\n\tB='2' \t\n":               {"A": "1", "B": "2"},
		"A='1' # one\nB='#2'\t#two":          {"A": "1", "B": "#2"},
		"A=''\n":                             {"A": ""},
		"A=' x=y  '\n":                       {"A": " x=y  "},
		"A='one\n\n# two\n  three'\nB='2'\n": {"A": "one\n\n# two\n  three", "B": "2"},
		"A='$HOME ${B} `C` \\n \"q\" é'\n":   {"A": "$HOME ${B} `C` \\n \"q\" é"},
		"A='1'\nA='2'\n":                     {"A": "2"},
		"A='\r'\n":                           {"A": "\r"},
		"A='1'\n# unfinished 'quote":         {"A": "1"},
	} {
		got, err := ParseEnvFile(text)
		if err != nil || !maps.Equal(got, want) {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
		checkShell(t, text, got)
	}
	if got, err := ParseEnvFile("a.b-c/d='1'"); err != nil || got["a.b-c/d"] != "1" {
		t.Errorf("a name that no shell knows: %q, %v", got, err)
	}
}

// checkShell compares with what a shell makes of the text.
func checkShell(t *testing.T, text string, vars map[string]string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "env")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range vars {
		out, err := exec.CommandContext(t.Context(), "sh", "-c", `. "$1"; printf %s "$`+name+`"`, "sh", file).CombinedOutput()
		if err != nil || string(out) != want {
			t.Errorf("%q: the shell says %s=%q, %v; want %q", text, name, out, err, want)
		}
	}
}

func TestParseEnvFileInvalid(t *testing.T) {
	for text, want := range map[string]string{
		"A":                  "line 1: there is no '='",
		"A='1'\nsecret\nB=1": "line 2: there is no '='",
		"='1'":               "line 1: there is no name",
		"A ='1'":             "line 1: white space is not allowed",
		"export A='1'":       "line 1: white space is not allowed",
		"A= '1'":             "line 1: the value must be enclosed in single quotes",
		"A=1":                "line 1: the value must be enclosed in single quotes",
		`A="1"`:              "line 1: the value must be enclosed in single quotes",
		"A=":                 "line 1: the value must be enclosed in single quotes",
		"é='1'":              "line 1: a name must be of printable ASCII",
		"A='1'\nB='2\n3\n":   "line 2: the single quote that begins here is never closed",
		"A='1''2'":           "line 1: there is more after the closing quote",
		"A='1'#x":            "line 1: there is more after the closing quote",
		"A='1\n2' B='3'":     "line 2: there is more after the closing quote",
		`A='it\'s'`:          "line 1: there is more after the closing quote",
		"A='1'\r\n":          "line 1: it ends with a carriage return",
		"A='\x00'":           "line 1: a value must not contain a NUL byte",
		"\x00='1'":           "line 1: a name must be of printable ASCII",
		"\u00a0A='1'":        "line 1: a name must be of printable ASCII",
	} {
		got, err := ParseEnvFile(text)
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %q, %v; want %s", text, got, err, want)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: the error tells what is in the file: %v", text, err)
		}
	}
}

func FuzzParseEnvFile(f *testing.F) {
	f.Add("A='1' # x\n\n B='two\nlines'\n#")
	f.Add("A='1'\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		vars, err := ParseEnvFile(text)
		if err != nil {
			return
		}
		var again strings.Builder
		for _, name := range slices.Sorted(maps.Keys(vars)) {
			if name == "" || strings.ContainsAny(name, "= \t\n") || strings.ContainsAny(vars[name], "'\x00") {
				t.Errorf("%q: %q=%q", text, name, vars[name])
			}
			// Such a line is a comment.
			if !strings.HasPrefix(name, "#") {
				again.WriteString(name + "='" + vars[name] + "'\n")
			} else {
				t.Errorf("%q: the name %q", text, name)
			}
		}
		if got, err := ParseEnvFile(again.String()); err != nil || !maps.Equal(got, vars) {
			t.Errorf("%q: %q becomes %q, %v", text, vars, got, err)
		}
	})
}

func TestFileKeyRef(t *testing.T) {
	files := map[string]string{"good": "A='1'\nE=''\n", "bad": "A=1\n"}
	reads := 0
	in := testInput()
	in.EnvFile = func(volume, path string) ([]byte, error) {
		reads++
		if text, ok := files[path]; ok && volume == "v" {
			return []byte(text), nil
		}
		return nil, fs.ErrNotExist
	}
	variable := func(name, path, key string, optional bool) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{
			FileKeyRef: &corev1.FileKeySelector{VolumeName: "v", Path: path, Key: key, Optional: &optional},
		}}
	}
	in.Container.Env = []corev1.EnvVar{
		variable("A", "good", "A", false),
		variable("E", "good", "E", false),
		variable("N", "good", "none", true),
		variable("F", "none", "A", true),
		{Name: "R", Value: "$(A)$(N)"},
	}
	e, err := env(&in)
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{"A": "1", "E": "", "R": "1$(N)"}; !maps.Equal(e.values, want) {
		t.Errorf("%q, want %q", e.values, want)
	}
	if reads != 2 {
		t.Errorf("read %d files, want each once", reads)
	}
	for want, v := range map[string]corev1.EnvVar{
		"environment variable A: couldn't find key B in file good of volume v": variable("A", "good", "B", false),
		"environment variable A: volume v has no file none":                    variable("A", "none", "A", false),
		"environment variable A: file bad of volume v: line 1: the value":      variable("A", "bad", "A", true),
	} {
		in.Container.Env = []corev1.EnvVar{v}
		if _, err := env(&in); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	in.EnvFile = func(string, string) ([]byte, error) { return nil, errors.New("no way") }
	in.Container.Env = []corev1.EnvVar{variable("A", "good", "A", true)}
	if _, err := env(&in); err == nil {
		t.Error("a file that cannot be read is no file that is not there")
	}
}
