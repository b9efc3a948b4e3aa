package iscsi

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestPasswords: a password is in the file of its record, which is root's, and in no argument of a program. Where that
// file is not known, it is an argument.
func TestPasswords(t *testing.T) {
	disk := diskRecord{IQN: "iqn.2001-04.com.example:t", Iface: "berth-a"}
	text := "# BEGIN RECORD 2.1.8\nnode.name = " + disk.IQN + "\niface.iscsi_ifacename = berth-a\n" +
		"node.session.auth.password = old\nnode.session.auth.chap_algs = MD5\n# END RECORD\n"
	secret := map[string][]byte{
		"node.session.auth.username": []byte("user"), "node.session.auth.password": []byte("se#cr et = x"),
		"discovery.sendtargets.auth.username": []byte("finder"), "discovery.sendtargets.auth.password": []byte("dsecret"),
	}
	const node4 = "nodes/iqn.2001-04.com.example:t/127.0.0.1,3260"
	for name, c := range map[string]struct {
		record record
		prefix string
		files  map[string]string // below the directory
		in     string            // "": nowhere
	}{
		"a file":         {nodeRecordOf(disk, "127.0.0.1:3260"), sessionAuth, map[string]string{"a/" + node4: text}, "a/" + node4},
		"a directory":    {nodeRecordOf(disk, "127.0.0.1:3260"), sessionAuth, map[string]string{"b/" + node4 + "/berth-a": text}, "b/" + node4 + "/berth-a"},
		"IPv6":           {nodeRecordOf(disk, "[2001:db8::1]:3260"), sessionAuth, map[string]string{"a/nodes/iqn.2001-04.com.example:t/2001:db8::1,3260": text}, "a/nodes/iqn.2001-04.com.example:t/2001:db8::1,3260"},
		"discovery":      {discoveryRecordOf("127.0.0.1:3260"), discoveryAuth, map[string]string{"b/send_targets/127.0.0.1,3260/st_config": "discovery.type = sendtargets\n"}, "b/send_targets/127.0.0.1,3260/st_config"},
		"nowhere":        {nodeRecordOf(disk, "127.0.0.1:3260"), sessionAuth, nil, ""},
		"another's":      {nodeRecordOf(disk, "127.0.0.1:3260"), sessionAuth, map[string]string{"a/" + node4: strings.Replace(text, "berth-a", "default", 1)}, ""},
		"in two of them": {nodeRecordOf(disk, "127.0.0.1:3260"), sessionAuth, map[string]string{"a/" + node4: text, "b/" + node4: text}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for path, text := range c.files {
				must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o700))
				must(t, os.WriteFile(filepath.Join(dir, path), []byte(text), 0o600))
			}
			adm := &iscsiadm{filepath.Join(dir, "iscsiadm"), []string{filepath.Join(dir, "a"), filepath.Join(dir, "b")}}
			must(t, os.WriteFile(adm.path, []byte("#!/bin/sh\nprintf '%s\\n' \"$*\" >>"+dir+"/args\n"), 0o700))
			must(t, adm.useCHAP(t.Context(), c.record, c.prefix, secret))
			args, err := os.ReadFile(dir + "/args")
			must(t, err)
			password := string(secret[c.prefix+"password"])
			if said := strings.Contains(string(args), password); said != (c.in == "") {
				t.Errorf("iscsiadm was called with %s", args)
			}
			if c.in == "" {
				return
			}
			var st unix.Stat_t
			must(t, unix.Stat(filepath.Join(dir, c.in), &st))
			now, err := os.ReadFile(filepath.Join(dir, c.in))
			must(t, err)
			if st.Mode&0o777 != 0o600 || strings.Count(string(now), c.prefix+"password = ") != 1 ||
				!strings.Contains(string(now), "\n"+c.prefix+"password = "+password+"\n") || strings.Contains(string(now), "old") {
				t.Errorf("mode %o, %s", st.Mode, now)
			}
			if left, _ := filepath.Glob(filepath.Join(dir, "*", ".berth-*")); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}
