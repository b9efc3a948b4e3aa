// Command registry serves the images of archives on a loopback address, for tests whose programs pull what they run:
//
//	registry -listen 127.0.0.1:5000 -dir DIR IMAGE.tar...
//
// An image is served by its name without the registry's. The blobs are kept in the directory. When all of them are
// there to be pulled, it says so in one line.
package main

import (
	"archive/tar"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("registry: ")
	listen := flag.String("listen", "127.0.0.1:5000", "address")
	dir := flag.String("dir", "", "directory of its own")
	flag.Parse()
	if err := serve(*listen, *dir, flag.Args()); err != nil {
		log.Fatal(err)
	}
}

func serve(listen, dir string, archives []string) error {
	blobs := filepath.Join(dir, "blobs")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		return err
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	server := &http.Server{
		Handler: registry.New(registry.Logger(log.New(io.Discard, "", 0)),
			registry.WithBlobHandler(registry.NewDiskBlobHandler(blobs))),
		ReadHeaderTimeout: time.Minute,
	}
	go func() { ended <- server.Serve(l) }()
	for i, archive := range archives {
		if err := offer(l.Addr().String(), archive, filepath.Join(dir, fmt.Sprint("image-", i))); err != nil {
			return fmt.Errorf("offer %s: %w", archive, err)
		}
	}
	fmt.Println("serving", len(archives), "images on", l.Addr())
	return <-ended
}

// offer puts the image of an archive into the registry at an address.
func offer(address, archive, tree string) error {
	if err := unpack(archive, tree); err != nil {
		return err
	}
	defer os.RemoveAll(tree)
	path, err := layout.FromPath(tree)
	if err != nil {
		return err
	}
	index, err := path.ImageIndex()
	if err != nil {
		return err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return err
	}
	if len(manifest.Manifests) != 1 {
		return fmt.Errorf("%d images, want one", len(manifest.Manifests))
	}
	d := manifest.Manifests[0]
	image, err := index.Image(d.Digest)
	if err != nil {
		return err
	}
	_, rest, _ := strings.Cut(d.Annotations["io.containerd.image.name"], "/")
	ref, err := name.ParseReference(address+"/"+rest, name.Insecure)
	if err != nil {
		return err
	}
	return remote.Write(ref, image)
}

// unpack unpacks an archive that we have made: files, and directories above them.
func unpack(archive, tree string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if err := put(filepath.Join(tree, filepath.Clean("/"+h.Name)), r); err != nil {
			return err
		}
	}
}

func put(path string, from io.Reader) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Close())
}
