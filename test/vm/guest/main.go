// Guest is what a test has inside of its virtual machine: it executes the commands that come over a port of the
// machine, and is a registry of images on the machine's loopback. By the names of berth's programs it is a version of
// them that never becomes ready.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// maxOutput bounds what is kept of a command's output, in bytes.
const maxOutput = 1 << 20

// A command and its result are a line of JSON each.
type (
	command struct {
		ID      int    `json:"id"`
		Script  string `json:"script"` // for bash
		Seconds int    `json:"seconds"`
	}
	result struct {
		ID     int    `json:"id"`
		Output string `json:"output"` // of both streams
		Code   int    `json:"code"`
		Error  string `json:"error,omitempty"`
	}
)

// neverReady is a version of berth whose agent does nothing.
func neverReady(program string, args []string) error {
	switch {
	case len(args) > 0 && args[0] == "version":
		_, err := fmt.Println(program, "v9.9.9")
		return err
	case len(args) > 0 && args[0] == "install":
		cmd := exec.Command("/usr/local/bin/berth", args...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		return cmd.Run()
	}
	time.Sleep(24 * time.Hour) // longer than anybody waits
	return nil
}

func main() {
	if name := filepath.Base(os.Args[0]); strings.HasPrefix(name, "berth") {
		if err := neverReady(name, os.Args[1:]); err != nil {
			log.Fatal(err)
		}
		return
	}
	if len(os.Args) < 3 || os.Args[1] == "registry" && len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: guest commands PORT | guest registry ADDRESS DIRECTORY")
		os.Exit(2)
	}
	var err error
	switch os.Args[1] {
	case "commands":
		err = commands(os.Args[2])
	case "registry":
		err = serve(os.Args[2], os.Args[3])
	}
	if err != nil {
		log.Fatal(err)
	}
}

func commands(path string) error {
	port, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer port.Close()
	out := json.NewEncoder(port)
	if err := out.Encode(result{}); err != nil { // the machine is up
		return err
	}
	in := bufio.NewReader(port)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil { // a port has an end while nobody outside has it open
			time.Sleep(100 * time.Millisecond)
			continue
		}
		var c command
		if err := json.Unmarshal(line, &c); err != nil {
			return fmt.Errorf("read command: %w", err)
		}
		if err := out.Encode(execute(c)); err != nil {
			return fmt.Errorf("tell result: %w", err)
		}
	}
}

// capped keeps the first maxOutput bytes.
type capped struct{ bytes.Buffer }

func (c *capped) Write(p []byte) (int, error) {
	c.Buffer.Write(p[:min(len(p), max(0, maxOutput-c.Len()))])
	return len(p), nil
}

func execute(c command) result {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(c.Seconds)*time.Second)
	defer cancel()
	var out capped
	cmd := exec.CommandContext(ctx, "/bin/bash", "-c", c.Script)
	cmd.Env = append(os.Environ(), "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = 5 * time.Second // what it leaves running may hold its output open
	err := cmd.Run()
	r := result{ID: c.ID, Output: out.String()}
	if cmd.ProcessState != nil {
		r.Code = cmd.ProcessState.ExitCode()
	}
	if err != nil {
		r.Error = err.Error()
	}
	return r
}

// serve is a registry that has the images below a directory, each one in OCI's layout and with the tag 1.
func serve(address, dir string) error {
	failed := make(chan error, 1)
	go func() { failed <- http.ListenAndServe(address, registry.New()) }()
	all, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, d := range all {
		if err := push(filepath.Join(dir, d.Name()), address+"/"+d.Name()+":1"); err != nil {
			return fmt.Errorf("push %s: %w", d.Name(), err)
		}
	}
	return <-failed
}

func push(dir, ref string) error {
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return err
	}
	image, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		return err
	}
	tag, err := name.NewTag(ref, name.Insecure)
	if err != nil {
		return err
	}
	return remote.Write(tag, image)
}
