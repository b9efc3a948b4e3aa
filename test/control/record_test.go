package control

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMemberRecord removes, empties and tears the record of a member's place, of the first one and of one that has
// joined. It is made again, and the member is who it was. Of a machine that has joined, and has nothing yet by which it
// is known who it is, no cluster of its own comes.
func TestMemberRecord(t *testing.T) {
	t.Parallel()
	addresses := []string{"127.0.0.1", "127.0.0.2"}
	p := ports(t, addresses...)
	at := []memberFlags{{addresses[0], "192.0.2.1", p}, {addresses[1], "192.0.2.2", p}}
	all := []*plane{at[0].start(t, t.TempDir(), at[0].peer()...)}
	all[0].write(t, "before")
	joined := at[1].join(t, all[0], t.TempDir())
	record := filepath.Join(joined, "member.json")
	whole, err := os.ReadFile(record)
	if err == nil {
		err = os.Remove(record)
	}
	if err != nil {
		t.Fatal(err)
	}
	refuses(t, joined, "one that has only joined", filepath.Join(joined, "etcd.begun"))
	if err := os.WriteFile(record, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	all = append(all, at[1].start(t, joined))
	members := all[0].run(t, "etcd", "members", "-o", "json")
	for i, m := range all {
		for name, damage := range map[string]func(string) error{
			"gone":  os.Remove,
			"empty": func(path string) error { return os.Truncate(path, 0) },
			"torn":  func(path string) error { return os.Truncate(path, 20) },
		} {
			m.kill()
			if err := damage(filepath.Join(m.dir, "member.json")); err != nil {
				t.Fatal(err)
			}
			m = at[i].start(t, m.dir)
			all[i] = m
			until(t, "the members are who they were", func() error {
				now, err := control(t, m.dir, "etcd", "members", "-o", "json")
				if err == nil && now != members {
					t.Fatalf("%s, of %s: they are %s, and were %s", name, at[i].at, now, members)
				}
				return err
			})
			if text, err := os.ReadFile(filepath.Join(m.dir, "member.json")); err != nil || !strings.Contains(string(text), at[i].at) {
				t.Errorf("%s: the record is %q, %v", name, text, err)
			}
			m.has(t, "before")
		}
	}
}
