package early

import (
	"slices"
	"strings"
	"testing"
)

func TestAnswer(t *testing.T) {
	if _, ok := answer([]string{"berth", "version"}); ok {
		t.Error("answered by a build that does not know its version")
	}
	version = "1.2.3"
	defer func() { version = "" }()
	for line, want := range map[string]string{
		"berth version": "berth 1.2.3\n", "/usr/bin/berth version": "berth 1.2.3\n", "berth version -h": "", "berth versions": "", "berth": "",
		"kubelet version": "", "/opt/cni/bin/portmap version": "", "berth --run-dir version": "",
	} {
		got, ok := answer(strings.Fields(line))
		if ok != (want != "") || ok && got != want {
			t.Errorf("%s: %q, %v", line, got, ok)
		}
	}
	if _, ok := answer(slices.Clip([]string{})); ok {
		t.Error("answered to nobody")
	}
}
