// Command mkimage makes an OCI image archive of one layer out of files of this machine: for the example and the tests,
// which must not depend on a registry or a build tool.
//
//	mkimage -o busybox.tar -name berth.test/busybox:1 -cmd sh /bin/busybox=/bin/busybox /bin/sh@busybox /tmp/
//
// An entry PATH=SOURCE is a file with the source's mode, PATH@TARGET a symbolic link, PATH/ a directory (mode 0755;
// /tmp 1777), PATH:TEXT a small file with that text. The archive is the same to the byte for the same input.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"maps"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"
)

type config struct {
	out, name, entrypoint, cmd, env, user, workdir, arch string
	entries                                              []string
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("mkimage: ")
	var c config
	flag.StringVar(&c.out, "o", "image.tar", "archive to write")
	flag.StringVar(&c.name, "name", "", "name of the image, with its tag")
	flag.StringVar(&c.entrypoint, "entrypoint", "", "entrypoint, words separated by spaces")
	flag.StringVar(&c.cmd, "cmd", "", "command, words separated by spaces")
	flag.StringVar(&c.env, "env", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"environment, NAME=VALUE separated by commas")
	flag.StringVar(&c.user, "user", "", "user")
	flag.StringVar(&c.workdir, "workdir", "", "working directory")
	flag.StringVar(&c.arch, "arch", runtime.GOARCH, "architecture of its programs, by Go's name")
	flag.Parse()
	c.entries = flag.Args()
	if err := build(c); err != nil {
		log.Fatal(err)
	}
}

func build(c config) error {
	layer, err := layerOf(c.entries)
	if err != nil {
		return err
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	z.Write(layer)
	if err := z.Close(); err != nil {
		return err
	}

	process := map[string]any{"Env": strings.Split(c.env, ",")}
	if c.entrypoint != "" {
		process["Entrypoint"] = strings.Fields(c.entrypoint)
	}
	if c.cmd != "" {
		process["Cmd"] = strings.Fields(c.cmd)
	}
	if c.user != "" {
		process["User"] = c.user
	}
	if c.workdir != "" {
		process["WorkingDir"] = c.workdir
	}
	img := map[string]any{
		"architecture": c.arch, "os": "linux", "config": process,
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{digest(layer)}},
	}
	blobs := map[string][]byte{}
	add := func(mediaType string, b []byte) map[string]any {
		blobs[digest(b)] = b
		return map[string]any{"mediaType": mediaType, "digest": digest(b), "size": len(b)}
	}
	addJSON := func(mediaType string, v any) map[string]any {
		b, err := json.Marshal(v)
		if err != nil {
			panic(err) // maps of strings and numbers always encode
		}
		return add(mediaType, b)
	}
	manifest := addJSON("application/vnd.oci.image.manifest.v1+json", map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": addJSON("application/vnd.oci.image.config.v1+json", img),
		"layers": []any{add("application/vnd.oci.image.layer.v1.tar+gzip", zipped.Bytes())},
	})
	manifest["annotations"] = map[string]string{
		"io.containerd.image.name":          c.name,
		"org.opencontainers.image.ref.name": c.name,
	}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": []any{manifest}})
	if err != nil {
		return err
	}
	return writeLayout(c.out, index, blobs)
}

// layerOf makes the layer's tar of the entries of the command line.
func layerOf(entries []string) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	made := map[string]bool{".": true}
	dir := func(p string) error {
		var missing []string
		for p = path.Clean(p); !made[p] && p != "/"; p = path.Dir(p) {
			missing = append(missing, p)
			made[p] = true
		}
		for _, m := range slices.Backward(missing) {
			mode := int64(0o755)
			if m == "tmp" {
				mode = 0o1777
			}
			if err := w.WriteHeader(&tar.Header{
				Typeflag: tar.TypeDir, Name: m + "/", Mode: mode,
				ModTime: time.Unix(0, 0),
			}); err != nil {
				return err
			}
		}
		return nil
	}
	for _, e := range entries {
		i := strings.IndexAny(e, "=@:")
		if i < 0 {
			if err := dir(strings.Trim(e, "/")); err != nil {
				return nil, err
			}
			continue
		}
		name, value := strings.TrimPrefix(e[:i], "/"), e[i+1:]
		if err := dir(path.Dir(name)); err != nil {
			return nil, err
		}
		h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, ModTime: time.Unix(0, 0)}
		var body []byte
		switch e[i] {
		case '@':
			h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, value, 0o777
		case ':':
			body = []byte(value)
		case '=':
			info, err := os.Stat(value)
			if err != nil {
				return nil, err
			}
			if body, err = os.ReadFile(value); err != nil {
				return nil, err
			}
			h.Mode = int64(info.Mode().Perm())
			if info.Mode()&os.ModeSetuid != 0 {
				h.Mode |= 0o4000 // as tar has it
			}
		}
		h.Size = int64(len(body))
		if err := w.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("add %s: %w", name, err)
		}
		if _, err := w.Write(body); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return buf.Bytes(), err
}

func writeLayout(out string, index []byte, blobs map[string][]byte) error {
	f, err := os.Create(out + ".tmp")
	if err != nil {
		return err
	}
	defer f.Close()
	w := tar.NewWriter(f)
	write := func(name string, b []byte) {
		if err == nil {
			err = w.WriteHeader(&tar.Header{
				Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(b)),
				ModTime: time.Unix(0, 0),
			})
		}
		if err == nil {
			_, err = w.Write(b)
		}
	}
	write("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	write("index.json", index)
	for _, d := range slices.Sorted(maps.Keys(blobs)) {
		write("blobs/sha256/"+strings.TrimPrefix(d, "sha256:"), blobs[d])
	}
	if err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.Rename(out+".tmp", out)
}

func digest(b []byte) string {
	h := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(h[:])
}
