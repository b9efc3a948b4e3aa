package oci

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	testPasswd = "root:x:0:0:root:/root:/bin/sh\n# comment\nbroken\nweb:x:1000:1001::/home/web:/bin/sh\n7:x:2000:2000::/:/bin/sh\n" +
		"1234:x:0:0::/:/bin/sh\n0x10:x:16:16::/:/bin/sh\nstay:x:4294967295:0::/:/bin/sh\nkeep:x:5000:4294967295::/:/bin/sh\n"
	testGroup = "root:x:0:\nweb:x:1001:\nextra:x:3000:root,web\nstaff:x:3001:web\nnobody\n8:x:0:\nstay:x:4294967295:\n"
)

func TestResolveUser(t *testing.T) {
	id := func(n int64) *runtimeapi.Int64Value { return &runtimeapi.Int64Value{Value: n} }
	for _, tt := range []struct {
		name   string
		sc     *runtimeapi.LinuxContainerSecurityContext
		image  string
		uid    uint32
		gid    uint32
		groups []uint32
	}{
		{"nothing said", nil, "", 0, 0, []uint32{0, 3000}},
		{"image name", nil, "web", 1000, 1001, []uint32{1001, 3000, 3001}},
		{"image number", nil, "1000", 1000, 1001, []uint32{1001, 3000, 3001}},
		{"image name and group", nil, "web:staff", 1000, 3001, []uint32{3001, 3000}},
		{"image number and group number", nil, "1234:99", 1234, 99, []uint32{99}},
		{"a name of digits", nil, "7", 7, 0, []uint32{0}},
		{"a name of digits with a group", nil, "7:8", 7, 8, []uint32{8}},
		{"digits that are root's", nil, "1234", 1234, 0, []uint32{0}},
		{"leading zeros", nil, "01000:007", 1000, 7, []uint32{7, 3000, 3001}},
		{"plus", nil, "+1000", 1000, 1001, []uint32{1001, 3000, 3001}},
		{"hexadecimal is a name", nil, "0x10", 16, 16, []uint32{16}},
		{"pod number over a name of digits", &runtimeapi.LinuxContainerSecurityContext{RunAsUser: id(1234)}, "", 1234, 0, []uint32{0}},
		{"pod name of digits", &runtimeapi.LinuxContainerSecurityContext{RunAsUsername: "1234"}, "", 1234, 0, []uint32{0}},
		{"pod name, group of digits", &runtimeapi.LinuxContainerSecurityContext{RunAsUsername: "web:8"}, "", 1000, 8, []uint32{8, 3000, 3001}},
		{"pod name and group over a group of digits", &runtimeapi.LinuxContainerSecurityContext{RunAsUser: id(1000), RunAsGroup: id(8)}, "", 1000, 8, []uint32{8, 3000, 3001}},
		{"pod over image", &runtimeapi.LinuxContainerSecurityContext{RunAsUser: id(1234)}, "web:staff", 1234, 0, []uint32{0}},
		{"pod user and group", &runtimeapi.LinuxContainerSecurityContext{RunAsUser: id(1000), RunAsGroup: id(5)}, "", 1000, 5, []uint32{5, 3000, 3001}},
		{"pod name", &runtimeapi.LinuxContainerSecurityContext{RunAsUsername: "web"}, "", 1000, 1001, []uint32{1001, 3000, 3001}},
		{"pod name and group", &runtimeapi.LinuxContainerSecurityContext{RunAsUsername: "web:staff"}, "", 1000, 3001, []uint32{3001, 3000}},
		{"pod name, group number", &runtimeapi.LinuxContainerSecurityContext{RunAsUsername: "web:staff", RunAsGroup: id(5)}, "", 1000, 5, []uint32{5, 3000, 3001}},
		{"supplemental", &runtimeapi.LinuxContainerSecurityContext{RunAsUser: id(1000), SupplementalGroups: []int64{9, 3000}}, "", 1000, 1001, []uint32{1001, 3000, 3001, 9}},
		{"strict", &runtimeapi.LinuxContainerSecurityContext{
			RunAsUser: id(1000), SupplementalGroups: []int64{9}, SupplementalGroupsPolicy: runtimeapi.SupplementalGroupsPolicy_Strict,
		}, "", 1000, 1001, []uint32{1001, 9}},
	} {
		u, err := ResolveUser(tt.sc, tt.image, []byte(testPasswd), []byte(testGroup))
		if err != nil || u.UID != tt.uid || u.GID != tt.gid || !slices.Equal(u.AdditionalGids, tt.groups) {
			t.Errorf("%s: got %+v, %v", tt.name, u, err)
		}
	}
	for name, sc := range map[string]*runtimeapi.LinuxContainerSecurityContext{
		"unknown name":         {RunAsUsername: "nobody-there"},
		"unknown group":        {RunAsUsername: "web:nogroup"},
		"negative name":        {RunAsUsername: "-1"},
		"negative group":       {RunAsUsername: "web:-1"},
		"too large a name":     {RunAsUsername: "4294967295"},
		"far too large":        {RunAsUsername: "99999999999999999999"},
		"too large a group":    {RunAsUsername: "web:99999999999999999999"},
		"id of \"no change\"":  {RunAsUsername: "stay"},
		"its group":            {RunAsUsername: "keep"},
		"group \"no change\"":  {RunAsUsername: "web:stay"},
		"group without a user": {RunAsGroup: id(1)},
		"negative":             {RunAsUser: id(-1)},
		"too large":            {RunAsUser: id(1<<32 - 1)},
		"bad supplemental":     {SupplementalGroups: []int64{-5}},
	} {
		if u, err := ResolveUser(sc, "", []byte(testPasswd), []byte(testGroup)); err == nil {
			t.Errorf("%s: got %+v", name, u)
		}
	}
	if _, err := ResolveUser(nil, "web:nogroup", []byte(testPasswd), []byte(testGroup)); err == nil {
		t.Error("an unknown group was taken")
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestSignals(t *testing.T) {
	for s, want := range map[string]unix.Signal{
		"SIGTERM": unix.SIGTERM, "term": unix.SIGTERM, "15": unix.SIGTERM, "SIGRTMIN+3": 37, "rtmax-1": 63, "SIGRTMIN": 34, "SIGPOLL": unix.SIGIO, "CLD": unix.SIGCHLD,
	} {
		if got, err := ParseSignal(s); err != nil || got != want {
			t.Errorf("%s: got %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "SIGNOPE", "0", "65", "RTMIN+31", "RTMIN+x", "-1"} {
		if got, err := ParseSignal(s); err == nil {
			t.Errorf("%q: got %v", s, got)
		}
	}
	// Every name the CRI has is a signal, and leads back to itself or to its synonym.
	for n, name := range runtimeapi.Signal_name {
		if n == 0 {
			continue
		}
		sig, err := StopSignal(runtimeapi.Signal(n), "")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		back, err := StopSignal(SignalOf(sig), "")
		if err != nil || back != sig {
			t.Errorf("%s: %v became %v, %v", name, sig, back, err)
		}
	}
	if s, err := StopSignal(0, "SIGQUIT"); s != unix.SIGQUIT || err != nil {
		t.Errorf("image's: got %v, %v", s, err)
	}
	if s, err := StopSignal(0, ""); s != unix.SIGTERM || err != nil {
		t.Errorf("default: got %v, %v", s, err)
	}
}

func FuzzResolveUser(f *testing.F) {
	f.Add("web:staff", []byte(testPasswd), []byte(testGroup))
	f.Fuzz(func(t *testing.T, user string, passwd, group []byte) {
		u, err := ResolveUser(nil, user, passwd, group)
		// Who was judged not to be root by its number has that number.
		if uid, _ := ImageUser(user); err == nil && uid != nil && int64(u.UID) != *uid {
			t.Errorf("user %q runs as %d", user, u.UID)
		}
		if err == nil && len(u.AdditionalGids) == 0 {
			t.Error("not even the primary group")
		}
	})
}

func FuzzParseSignal(f *testing.F) {
	f.Add("SIGRTMIN+3")
	f.Fuzz(func(t *testing.T, s string) {
		if sig, err := ParseSignal(s); err == nil && (sig < 1 || sig > sigRTMax) {
			t.Errorf("%q: got %d", s, sig)
		}
	})
}
