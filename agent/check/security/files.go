package security

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// A place is what may be done with files of a kind.
type place struct {
	name  string
	paths []string // globs
	may   fs.FileMode
	do    string
}

// exec is what Unix has as x for everybody: others pass through a directory, and see no names.
const pass = 0o711

// places are the files of the node and who may do what with them.
func (c Config) places(s settings) []place {
	root, run := s.text("berth.rootDir"), c.RunDir
	own := func(dir string, names ...string) []string {
		out := []string{}
		for _, n := range names {
			out = append(out, filepath.Join(dir, n))
		}
		return out
	}
	given := func(paths ...string) []string {
		return slices.DeleteFunc(paths, func(p string) bool { return p == "" })
	}
	return []place{
		{"directories", append(own(root, "", "content", "snapshots", "pki", "manifests", "pods", "plugins_registry", "device-plugins"), run), 0o755, ""},
		{"agent socket", own(run, "berth.sock"), 0o600, ""},
		{"runtime socket", own(run, "cri.sock"), 0o660, ""},
		// To connect to a socket takes the right to write to it.
		{"other sockets", own(run, "nri.sock", "sandboxes/*/keeper/keeper.sock"), 0o755, ""},
		{"plugin sockets", []string{s.below("berth.kubeletDir", "device-plugins/*.sock"), s.below("berth.kubeletDir", "pod-resources/*.sock")}, 0o755, ""},
		{"records", append(own(root, "*.db", "*.json", "events", "runtimes", "csi/*", "provision/*", "image_manager/*/*", "manifests/*",
			"csi-local/records/*/*"), own(run, "records", "lock", "*.json", "sandboxes/*/record", "sandboxes/*/containers/*",
			"ipam/results/*")...), 0o600, ""},
		{"private keys", append(given(s.text("tlsPrivateKeyFile")), own(s.text("berth.certDir"), "*.pem", "*.key")...), 0o600, ""},
		{"client CA", given(s.text("authentication.x509.clientCAFile")), 0o644, ""},
		{"tokens", given(s.text("berth.tokenAuthFile"), s.text("berth.kubeconfig")), 0o600, ""},
		{"configuration", []string{"/etc/berth/config.yaml", "/etc/berth/config.d/*"}, 0o644, ""},
		{"manifest directory", given(s.text("staticPodPath")), 0o755, "they may have Secrets"},
		{"units", []string{"/etc/systemd/system/berth*.service", "/usr/lib/systemd/system/berth*.service"}, 0o644, ""},
	}
}

// fileItems look at modes and owners.
func (c Config) fileItems(s settings) []Item {
	var out []Item
	for _, p := range c.places(s) {
		out = append(out, c.look(p))
	}
	return out
}

// most is how many files are named.
const most = 5

func (c Config) look(p place) Item {
	item := Item{Name: p.name, Status: OK}
	var amiss []string
	seen := 0
	for _, pattern := range p.paths {
		all, err := filepath.Glob(pattern)
		if err != nil {
			return Item{p.name, Unknown, err.Error(), "name directories without the characters of patterns"}
		}
		for _, path := range all {
			why, err := c.wrong(path, p.may)
			switch {
			case errors.Is(err, fs.ErrNotExist): // it went meanwhile
			case err != nil:
				return Item{p.name, Unknown, err.Error(), "run this as root"}
			case why != "":
				amiss = append(amiss, why)
				fallthrough
			default:
				seen++
			}
		}
	}
	item.Found = fmt.Sprintf("%d, none beyond %#o", seen, p.may)
	if len(amiss) > 0 {
		more := ""
		if n := len(amiss) - most; n > 0 {
			amiss, more = amiss[:most], fmt.Sprintf(", and %d more", n)
		}
		item.Status, item.Found = Deviation, strings.Join(amiss, ", ")+more
		item.Do = fmt.Sprintf("chown root and chmod %#o at most, and find out who has changed them", p.may)
		if p.do != "" {
			item.Do += ": " + p.do
		}
	}
	return item
}

// wrong says what is wrong with a file; "" when nothing is.
func (c Config) wrong(path string, may fs.FileMode) (string, error) {
	st, err := os.Lstat(path)
	if err == nil && st.Mode()&fs.ModeSymlink != 0 {
		// What it leads to counts, as a key does that is kept elsewhere. A unit that is masked leads to a device.
		if st, err = os.Stat(path); err == nil && st.Mode()&fs.ModeDevice != 0 {
			return "", nil
		}
	}
	if err != nil {
		return "", err
	}
	if st.IsDir() {
		may |= pass // a directory among files: what is in it counts
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok && sys.Uid != c.UID {
		return fmt.Sprintf("%s is of user %d", path, sys.Uid), nil
	}
	if beyond := st.Mode().Perm() &^ may; beyond != 0 {
		return fmt.Sprintf("%s has %#o", path, st.Mode().Perm()), nil
	}
	return "", nil
}

// secretItems find out whether secrets are on a disk.
func (c Config) secretItems(s settings) []Item {
	item := Item{Name: "secret volumes", Status: OK, Do: "remove the pods, and find out why their volumes are on a disk"}
	var on []string
	seen := 0
	for _, kind := range []string{"kubernetes.io~secret", "kubernetes.io~projected"} {
		all, err := filepath.Glob(s.below("berth.rootDir", "pods/*/volumes", kind, "*"))
		if err != nil {
			return []Item{{item.Name, Unknown, err.Error(), item.Do}}
		}
		for _, path := range all {
			var st unix.Statfs_t
			if err := unix.Statfs(path, &st); err != nil {
				if errors.Is(err, fs.ErrNotExist) {
					continue
				}
				return []Item{{item.Name, Unknown, fmt.Sprintf("look at %s: %v", path, err), item.Do}}
			}
			if seen++; st.Type != unix.TMPFS_MAGIC {
				on = append(on, path)
			}
		}
	}
	item.Status, item.Found = decide(len(on) == 0, fmt.Sprintf("%d, all in memory", seen))
	if len(on) > 0 {
		item.Found = "on a disk: " + strings.Join(on[:min(len(on), most)], ", ")
	}
	return []Item{item, c.storedSecrets(s)}
}
