// Package repack makes a package of what dpkg has installed, so that dpkg can install that version again when nobody
// has kept the file that it came from.
package repack

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/berth-node/berth/internal/atomicfile"
	programs "github.com/berth-node/berth/internal/command"
)

// How long dpkg may take to answer, and to compress what a package has: tens of megabytes on a slow disk.
const (
	askPatience   = time.Minute
	buildPatience = 10 * time.Minute
)

// Installed is a package that dpkg has installed.
type Installed struct {
	Root string // of the machine: "/" but in tests
	Name string
	// Version and Arch are what dpkg says of it.
	Version, Arch string
}

// Find looks for a package; nil when dpkg is not here or has not installed it.
func Find(ctx context.Context, root, name string) *Installed {
	p := &Installed{Root: root, Name: name}
	out, err := p.ask(ctx, "--show", "--showformat", "${db:Status-Status} ${Version} ${Architecture}", name)
	words := strings.Fields(out)
	if err != nil || len(words) != 3 || words[0] != "installed" {
		return nil
	}
	p.Version, p.Arch = words[1], words[2]
	return p
}

func (p *Installed) ask(ctx context.Context, args ...string) (string, error) {
	call := programs.Call{Name: "dpkg-query", Args: append([]string{"--admindir=" + p.at("/var/lib/dpkg")}, args...), Deadline: askPatience}
	out, err := call.Run(ctx)
	return out.Out, err
}

func (p *Installed) at(path string) string { return filepath.Join(p.Root, path) }

// Make makes the package in dir, which is made, and returns the path of its file. What it has is on the disk then. A
// file that is there already for the same content of one of its files, the program, is returned as it is.
func (p *Installed) Make(ctx context.Context, program, dir string) (string, error) {
	sum, err := digest(p.at(program))
	if err != nil {
		return "", fmt.Errorf("make package of what is installed: %w", err)
	}
	// The program is in the name: two builds may say the same version of themselves.
	name := strings.Join([]string{p.Name, p.Version, p.Arch, sum[:12]}, "_") + ".deb"
	path := filepath.Join(dir, regexp.MustCompile(`[^0-9A-Za-z.+~_-]`).ReplaceAllString(name, "-"))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make package of what is installed: %w", err)
	}
	tree, err := os.MkdirTemp(dir, "tree-")
	if err != nil {
		return "", fmt.Errorf("make package of what is installed: %w", err)
	}
	defer func() { _ = os.RemoveAll(tree) }() // the next sweep has what stays
	if err := p.build(ctx, tree, path); err != nil {
		return "", fmt.Errorf("make package of %s %s as it is installed: %w", p.Name, p.Version, err)
	}
	return path, nil
}

func (p *Installed) build(ctx context.Context, tree, path string) error {
	if err := os.Chmod(tree, 0o755); err != nil { // it is the directory / of the package
		return err
	}
	if err := p.control(ctx, filepath.Join(tree, "DEBIAN")); err != nil {
		return err
	}
	list, err := p.ask(ctx, "--listfiles", p.Name)
	if err != nil {
		return err
	}
	for path := range strings.Lines(list) {
		if path = strings.TrimSpace(path); !filepath.IsAbs(path) || path == "/." {
			continue // dpkg's remark about a file that another package has there
		}
		if err := copyTo(filepath.Join(tree, path), p.at(path)); err != nil {
			return fmt.Errorf("copy %s: %w", path, err)
		}
	}
	part := path + atomicfile.Part
	args := []string{"--root-owner-group", "-Zgzip", "-z1", "--build", tree, part}
	_, err = programs.Call{Name: "dpkg-deb", Args: args, Deadline: buildPatience}.Run(ctx)
	if err == nil {
		err = synced(part)
	}
	if err == nil {
		err = os.Rename(part, path)
	}
	if err != nil {
		_ = os.Remove(part)
		return err
	}
	return atomicfile.SyncDir(filepath.Dir(path))
}

// info are the files that dpkg keeps of a package, and that a package is built with.
var info = []string{"preinst", "postinst", "prerm", "postrm", "config", "templates", "md5sums", "conffiles", "triggers", "shlibs", "symbols"}

// control makes the directory of what a package says of itself.
func (p *Installed) control(ctx context.Context, dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	status, err := p.ask(ctx, "--status", p.Name)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "control"), []byte(fields(status)), 0o644); err != nil {
		return err
	}
	has, err := p.ask(ctx, "--control-list", p.Name)
	if err != nil {
		return err
	}
	for _, name := range info {
		if !strings.Contains("\n"+has, "\n"+name+"\n") {
			continue
		}
		text, err := p.ask(ctx, "--control-show", p.Name, name)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// fields are those of a package, of all that dpkg says of one that is installed.
func fields(status string) string {
	var out strings.Builder
	keep := false
	for line := range strings.Lines(status) {
		if !strings.HasPrefix(line, " ") {
			key, _, _ := strings.Cut(line, ":")
			keep = key != "Status" && key != "Conffiles" && key != "Config-Version"
		}
		if keep && strings.TrimSpace(line) != "" {
			out.WriteString(line)
		}
	}
	return out.String()
}

// copyTo copies what a package has at a path. What is not there was left out by a setting of dpkg's, or removed.
func copyTo(to, from string) error {
	st, err := os.Lstat(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	// A directory of the package may be a link on the machine, as of one whose /usr is merged.
	if followed, err := os.Stat(from); err == nil && followed.IsDir() {
		return os.MkdirAll(to, 0o755)
	}
	switch {
	case st.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	case st.Mode().IsRegular():
		return copyFile(to, from, st)
	}
	return errors.New("it is neither file, link nor directory")
}

func copyFile(to, from string, st fs.FileInfo) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, st.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, io.LimitReader(src, st.Size()))
	return errors.Join(err, dst.Close(), os.Chmod(to, st.Mode().Perm()), os.Chtimes(to, st.ModTime(), st.ModTime()))
}

func digest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func synced(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
