package resident

import (
	"bufio"
	"os"
	"strconv"
	"strings"
	"testing"
)

// mappedOfProgram is how much of this program's file is mapped, in KiB, of what cannot be written to.
func mappedOfProgram(t *testing.T) (kib int) {
	t.Helper()
	own, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var m mapping
	for lines := bufio.NewScanner(f); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if !strings.HasSuffix(words[0], ":") {
			m = parseMapping(words)
		}
		if words[0] == "Rss:" && m.ofFile(own) {
			n, err := strconv.Atoi(words[1])
			if err != nil {
				t.Fatal(err)
			}
			kib += n
		}
	}
	return kib
}

func TestDropProgram(t *testing.T) {
	before := mappedOfProgram(t)
	if err := DropProgram(); err != nil {
		t.Fatal(err)
	}
	// What runs goes on, and has less of its file mapped.
	if after := mappedOfProgram(t); before == 0 || after >= before {
		t.Errorf("%d KiB before, %d after", before, after)
	}
}

func TestParseMapping(t *testing.T) {
	for line, want := range map[string]bool{
		"00400000-01a00000 r-xp 00000000 fe:00 12 /usr/bin/a b":           true,
		"01a00000-01b00000 rw-p 00000000 fe:00 12 /usr/bin/a b":           false, // it has been written to
		"01a00000-01b00000 r--s 00000000 fe:00 12 /usr/bin/a b":           false,
		"00400000-01a00000 r-xp 00000000 fe:00 12 /usr/bin/a b (deleted)": false,
		"00400000-01a00000 r-xp 00000000 fe:00 12 /usr/bin/c":             false,
		"00400000-01a00000 r-xp 00000000 00:00 0":                         false,
		"01a00000-00400000 r-xp 00000000 fe:00 12 /usr/bin/a b":           false,
		"x-y r-xp 0 0 0 /usr/bin/a b":                                     false,
	} {
		if got := parseMapping(strings.Fields(line)).ofFile("/usr/bin/a b"); got != want {
			t.Errorf("%s: %v", line, got)
		}
	}
}
