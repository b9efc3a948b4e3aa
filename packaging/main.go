// Command packaging makes a Debian package, an RPM and a tarball of trees that `berth install --destdir --packaged`
// and berth-control have laid out, with checksums and a bill of materials. What it is given the same twice it makes
// the same twice, byte for byte.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// job is what packages are made of.
type job struct {
	product product
	tree    string // what is laid out
	out     string
	version string // a git description
	arch    string // Go's name
	time    time.Time
	formats []string // of packages
}

func main() {
	j := job{}
	var epoch int64
	name := flag.String("name", "berth", "which package: berth or berth-control")
	flag.StringVar(&j.tree, "tree", "", "directory that the files are laid out in")
	flag.StringVar(&j.out, "out", "dist", "directory that packages are written to")
	flag.StringVar(&j.version, "version", "", "version, as git describe prints it")
	flag.StringVar(&j.arch, "arch", "amd64", "amd64 or arm64")
	formats := flag.String("formats", "deb,rpm", "kinds of packages, beside the tarball")
	flag.Int64Var(&epoch, "epoch", 0, "time of every file, in seconds since 1970 (SOURCE_DATE_EPOCH)")
	sums := flag.Bool("sums", false, "write the checksums of what is in the directory, and nothing else")
	flag.Parse()
	j.time, j.formats = time.Unix(epoch, 0).UTC(), strings.Split(*formats, ",")
	var err error
	if j.product, err = productOf(*name); err == nil {
		err = j.run(*sums)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "packaging:", err)
		os.Exit(1)
	}
}

func (j *job) run(sums bool) error {
	if sums {
		return checksums(j.out)
	}
	switch {
	case j.arch != "amd64" && j.arch != "arm64":
		return fmt.Errorf("-arch %q: must be amd64 or arm64", j.arch)
	case j.tree == "":
		return errors.New("-tree must be given")
	}
	if err := os.MkdirAll(j.out, 0o755); err != nil {
		return err
	}
	files, err := j.files()
	if err != nil {
		return fmt.Errorf("read tree: %w", err)
	}
	var programs []string
	for _, path := range j.product.programs {
		programs = append(programs, filepath.Join(j.tree, path))
	}
	bill, err := j.bill(programs...)
	if err != nil {
		return fmt.Errorf("make bill of materials: %w", err)
	}
	if err := os.WriteFile(filepath.Join(j.out, j.name()+".cdx.json"), bill, 0o644); err != nil {
		return err
	}
	if err := j.tarball(files); err != nil {
		return fmt.Errorf("make tarball: %w", err)
	}
	for _, format := range j.formats {
		if err := j.pack(format, files); err != nil {
			return fmt.Errorf("make %s: %w", format, err)
		}
	}
	return nil
}

func (j *job) name() string { return j.product.name + "_" + j.release() + "_" + j.arch }

var described = regexp.MustCompile(`^v?(\d+(?:\.\d+)*)(?:-(\d+)-g([0-9a-f]+))?(-dirty)?$`)

// release is the version in a form that both packagers order as git does: commits after a tag come after it, and what
// has no tag before all that has one.
func (j *job) release() string {
	m := described.FindStringSubmatch(j.version)
	if m == nil {
		clean := regexp.MustCompile(`[^0-9A-Za-z]+`).ReplaceAllString(strings.TrimPrefix(j.version, "v"), ".")
		return strings.Trim("0.0.0+"+j.time.Format("20060102150405")+"."+strings.Trim(clean, "."), ".")
	}
	out := m[1]
	if m[2] != "" {
		out += "+" + m[2] + "." + m[3]
	}
	if m[4] != "" {
		out += ".dirty"
	}
	return out
}
