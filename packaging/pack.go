package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	"github.com/goreleaser/nfpm/v2/files"

	_ "github.com/goreleaser/nfpm/v2/deb"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

// file is one file of the tree.
type file struct {
	path string // on the machine
	from string
	mode fs.FileMode
	size int64
}

// files are those of the tree, by path.
func (j *job) files() ([]file, error) {
	var out []file
	err := filepath.WalkDir(j.tree, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		if !st.Mode().IsRegular() {
			return fmt.Errorf("%s is no file", path)
		}
		out = append(out, file{strings.TrimPrefix(path, filepath.Clean(j.tree)), path, st.Mode().Perm(), st.Size()})
		return nil
	})
	if err == nil && len(out) == 0 {
		err = errors.New("it is empty")
	}
	slices.SortFunc(out, func(a, b file) int { return strings.Compare(a.path, b.path) })
	return out, err
}

// pack makes a package of a format of nfpm's.
func (j *job) pack(format string, all []file) error {
	dir, err := os.MkdirTemp("", "packaging-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for name, text := range j.product.scripts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			return err
		}
	}
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: j.product.name, Arch: j.arch, Platform: "linux", Version: j.release(), VersionSchema: "none", Section: "admin", Priority: "optional",
		MTime: j.time, License: "Apache-2.0", Maintainer: "berth", Homepage: "https://github.com/berth-node/berth",
		Description: j.product.about,
	})
	info.Overridables = nfpm.Overridables{
		Scripts: nfpm.Scripts{
			PostInstall: filepath.Join(dir, "postinst"), PreRemove: filepath.Join(dir, "prerm"), PostRemove: filepath.Join(dir, "postrm"),
		},
		Deb: nfpm.Deb{Compression: "xz"},
		RPM: nfpm.RPM{Compression: "xz", BuildHost: "berth", Summary: info.Description},
	}
	info.Contents = j.contents(format, all)
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	if err := nfpm.PrepareForPackager(info, format); err != nil {
		return err
	}
	return j.write(packager.ConventionalFileName(info), func(w io.Writer) error { return packager.Package(info, w) })
}

// contents are the files, each where a format's distributions have it, and the directories that go with them.
func (j *job) contents(format string, all []file) files.Contents {
	own := map[string]bool{}
	var out files.Contents
	for _, f := range all {
		path := place(format, f.path)
		out = append(out, &files.Content{
			Source: f.from, Destination: path,
			FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: f.mode, MTime: j.time},
		})
		for dir := filepath.Dir(path); j.owned(format, dir); dir = filepath.Dir(dir) {
			own[dir] = true
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(own)) {
		out = append(out, &files.Content{
			Destination: dir, Type: files.TypeDir,
			FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: 0o755, MTime: j.time},
		})
	}
	return out
}

// owned says whether a directory goes with its last file: one of the package's name, or below it. rpm removes the
// directories that a package names, and no others, so that it is told of those of shells, too, which a machine need
// not have: they go when nobody else names them. dpkg finds out by itself.
func (j *job) owned(format, dir string) bool {
	if strings.Contains(dir+"/", "/"+j.product.name+"/") {
		return true
	}
	for _, shell := range []string{"/usr/share/bash-completion/", "/usr/share/fish/", "/usr/share/zsh/"} {
		if strings.HasPrefix(dir+"/", shell) {
			return format == "rpm"
		}
	}
	return false
}

// place is where a file is on a machine of a format's: zsh looks for completions elsewhere there.
func place(format, path string) string {
	if name, ok := strings.CutPrefix(path, "/usr/share/zsh/vendor-completions/"); ok && format == "rpm" {
		return "/usr/share/zsh/site-functions/" + name
	}
	return path
}

// write makes a file of the output.
func (j *job) write(name string, fill func(io.Writer) error) error {
	f, err := os.Create(filepath.Join(j.out, name))
	if err != nil {
		return err
	}
	return errors.Join(fill(f), f.Close())
}

// tarball has the programs, as for berth install, and nothing that it makes itself.
func (j *job) tarball(all []file) error {
	return j.write(j.name()+".tar.gz", func(w io.Writer) error {
		zip, err := gzip.NewWriterLevel(w, gzip.BestCompression)
		if err != nil {
			return err
		}
		t := tar.NewWriter(zip)
		for _, f := range all {
			if !strings.HasPrefix(filepath.Base(f.path), "berth") || f.mode&0o111 == 0 {
				continue
			}
			header := &tar.Header{
				Typeflag: tar.TypeReg, Name: j.name() + "/" + filepath.Base(f.path), Mode: 0o755, Size: f.size, ModTime: j.time, Format: tar.FormatPAX,
			}
			if err := t.WriteHeader(header); err != nil {
				return err
			}
			src, err := os.Open(f.from)
			if err != nil {
				return err
			}
			_, err = io.Copy(t, src)
			if err := errors.Join(err, src.Close()); err != nil {
				return err
			}
		}
		return errors.Join(t.Close(), zip.Close())
	})
}

// sumsName is the file of checksums, as sha256sum(1) checks them.
const sumsName = "SHA256SUMS"

func checksums(dir string) error {
	all, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, d := range all {
		if d.Name() == sumsName || !d.Type().IsRegular() {
			continue
		}
		f, err := os.Open(filepath.Join(dir, d.Name()))
		if err != nil {
			return err
		}
		h := sha256.New()
		_, err = io.Copy(h, f)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s  %s\n", hex.EncodeToString(h.Sum(nil)), d.Name())
	}
	return os.WriteFile(filepath.Join(dir, sumsName), []byte(b.String()), 0o644)
}
