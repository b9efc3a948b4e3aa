package system

import (
	"encoding/json"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// seen is what there is of some kind on the machine.
type seen map[string][]string

// look lists what the kernel has that can be told to be this node's: by its directories, its bridge and its cgroup
// root. What else has appeared may be a neighbour's.
func (n *Node) look() seen {
	n.t.Helper()
	out := seen{}
	for _, dir := range []string{"root", "run", "logs"} {
		filepath.WalkDir(filepath.Join(n.Dir, dir), func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return nil
			case d.IsDir() && (filepath.Base(path) == "rootfs" || filepath.Base(path) == "fs"):
				return fs.SkipDir // a container's own
			case !d.IsDir():
				out["file"] = append(out["file"], path)
			case path != filepath.Join(n.Dir, dir):
				out["file"] = append(out["file"], path+"/")
			}
			return nil
		})
	}
	for _, m := range n.mounts() {
		out["mount"] = append(out["mount"], strings.TrimPrefix(m, "mount "))
	}
	for _, g := range n.cgroups() {
		_, below, _ := strings.Cut(g, n.CgroupRoot)
		out["cgroup"] = append(out["cgroup"], n.CgroupRoot+below)
	}
	ifs, err := net.Interfaces()
	if err != nil {
		n.t.Fatal(err)
	}
	for _, i := range ifs {
		master, _ := os.Readlink("/sys/class/net/" + i.Name + "/master")
		alias, _ := os.ReadFile("/sys/class/net/" + i.Name + "/ifalias")
		if i.Name == n.Bridge || filepath.Base(master) == n.Bridge || strings.HasPrefix(string(alias), "berth/"+n.Bridge) {
			out["link"] = append(out["link"], i.Name)
		}
	}
	if nft, err := exec.LookPath("nft"); err == nil {
		tables, err := exec.Command(nft, "list", "tables").Output()
		if err != nil {
			n.t.Fatal(err)
		}
		for line := range strings.Lines(string(tables)) {
			if name, ok := strings.CutPrefix(strings.TrimSpace(line), "table "); ok && strings.Contains(name, n.Bridge) {
				out["table"] = append(out["table"], name)
			}
		}
	}
	loops, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, l := range loops {
		if file, err := os.ReadFile(l); err == nil && strings.HasPrefix(string(file), n.Dir) {
			out["device"] = append(out["device"], "/dev/"+filepath.Base(filepath.Dir(filepath.Dir(l))))
		}
	}
	return out
}

// listed says whether a name is on the list: it is one, or below one that ends with a slash, or, of a directory, above
// one.
func listed(name string, list []string) bool {
	return slices.ContainsFunc(list, func(entry string) bool {
		if dir, ok := strings.CutSuffix(entry, "/"); ok && (strings.TrimSuffix(name, "/") == dir || strings.HasPrefix(name, entry)) {
			return true
		}
		match, _ := filepath.Match(entry, name)
		return match || strings.HasSuffix(name, "/") && strings.HasPrefix(entry, name)
	})
}

// settings are the kernel's about its network, but for those of links.
func settings(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, dir := range []string{"/proc/sys/net/ipv4", "/proc/sys/net/bridge", "/proc/sys/vm", "/proc/sys/kernel/keys", "/proc/sys/fs/inotify"} {
		filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				if d != nil && slices.Contains([]string{"conf", "neigh"}, d.Name()) {
					return fs.SkipDir
				}
				return nil
			}
			if st, err := d.Info(); err == nil && st.Mode()&0o222 != 0 && st.Mode()&0o444 != 0 {
				if b, err := os.ReadFile(path); err == nil {
					out[strings.ReplaceAll(strings.TrimPrefix(path, "/proc/sys/"), "/", ".")] = string(b)
				}
			}
			return nil
		})
	}
	return out
}

// TestFootprint compares what a running node with a pod has on the machine with what `berth footprint` lists.
func TestFootprint(t *testing.T) {
	kernel := settings(t)
	n := startNode(t)
	n.apply("a.yaml", pod("a", `
  volumes: [{name: d, emptyDir: {}}, {name: m, emptyDir: {medium: Memory}}, {name: p, downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}]
  containers:
  - name: main
    image: `+image+`
    command: [sleep, "1000000"]
    volumeMounts: [{name: d, mountPath: /d}, {name: m, mountPath: /m}, {name: p, mountPath: /p}]
    ports: [{containerPort: 80, hostPort: `+strconv.Itoa(freePort(t))+`}]`))
	n.waitReady("a")
	n.must("exec", "a", "--", "true")

	var made struct {
		Traces []struct{ Kind, Name, What string }
	}
	if err := json.Unmarshal([]byte(n.must(append([]string{"footprint", "-o", "json"}, n.dirArgs()...)...)), &made); err != nil {
		t.Fatal(err)
	}
	lists := map[string][]string{}
	for _, tr := range made.Traces {
		lists[tr.Kind] = append(lists[tr.Kind], tr.Name)
	}
	has := n.look()
	for kind, names := range has {
		for _, name := range names {
			if !listed(name, lists[kind]) {
				t.Errorf("berth footprint does not list the %s %s", kind, name)
			}
		}
	}
	for kind, least := range map[string]int{"file": 10, "mount": 8, "cgroup": 4, "link": 2} {
		if len(has[kind]) < least {
			t.Errorf("of the kind %s only these are seen: %q", kind, has[kind])
		}
	}
	for name, now := range settings(t) {
		if before, ok := kernel[name]; ok && before != now && !listed(name, lists["sysctl"]) {
			t.Errorf("the setting %s has become %q from %q", name, now, before)
		}
	}
}

// TestSecurityAudit audits a node that is as it is made, and one that somebody has opened.
func TestSecurityAudit(t *testing.T) {
	t.Parallel()
	n := startNode(t, "--cri-socket=cri.sock")
	write(t, filepath.Join(n.Dir, "secret.new"), "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {password: correct horse battery}\n")
	if err := os.Chmod(filepath.Join(n.Dir, "secret.new"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(n.Dir, "secret.new"), filepath.Join(n.Dir, "manifests/s.yaml")); err != nil {
		t.Fatal(err)
	}
	n.apply("a.yaml", pod("a", `
  volumes: [{name: s, secret: {secretName: s}}]
  containers:
  - {name: main, image: `+image+`, command: [sleep, "1000000"], volumeMounts: [{name: s, mountPath: /s}], env: [{name: P, valueFrom: {secretKeyRef: {name: s, key: password}}}]}`))
	n.waitReady("a")
	audit := func() (map[string]string, string, int) {
		t.Helper()
		out, errs, code := n.berth("check", "--security", "-o", "json")
		var r struct {
			Items []struct{ Name, Status, Found, Do string }
		}
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatalf("%v: %s%s", err, out, errs)
		}
		all := map[string]string{}
		for _, i := range r.Items {
			all[i.Name] = i.Status + " " + i.Found
		}
		return all, out, code
	}
	all, out, code := audit()
	if code != 0 || !strings.HasPrefix(all["secret volumes"], "ok 1,") || !strings.HasPrefix(all["secrets on disk"], "ok none of 1 ") {
		t.Errorf("exit code %d\n%s", code, out)
	}
	if log, err := os.ReadFile(n.Log); err != nil || strings.Contains(string(log), "correct horse") {
		t.Errorf("the log has the Secret, or cannot be read: %v", err)
	}
	for item, change := range map[string]struct {
		path string
		to   os.FileMode
	}{
		"agent socket": {"run/berth.sock", 0o666}, "runtime socket": {"run/cri.sock", 0o666}, "records": {"root/runtime.db", 0o644},
	} {
		path := filepath.Join(n.Dir, change.path)
		st, err := os.Stat(path)
		if err != nil || os.Chmod(path, change.to) != nil {
			t.Fatal(err)
		}
		all, out, code := audit()
		if code != 1 || !strings.HasPrefix(all[item], "deviation ") {
			t.Errorf("%s: exit code %d\n%s", item, code, out)
		}
		if err := os.Chmod(path, st.Mode().Perm()); err != nil {
			t.Fatal(err)
		}
	}
}
