package imagetest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"
)

// listening is how Debian's registry says where it is reached.
var listening = regexp.MustCompile(`msg="listening on (127\.0\.0\.1:[0-9]+)"`)

// StartDocker starts Debian's registry, which ends with the test, and returns its host. It is false where the package
// docker-registry is not installed. The kernel gives the registry its port: one that is chosen and freed before may be
// somebody else's by then.
func StartDocker(t testing.TB) (host string, installed bool) {
	t.Helper()
	program, err := exec.LookPath("docker-registry")
	if err != nil {
		return "", false
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yml")
	text := fmt.Sprintf("version: 0.1\nlog: {level: info, accesslog: {disabled: true}}\nstorage: {filesystem: {rootdirectory: %q}, "+
		"delete: {enabled: true}}\nhttp: {addr: '127.0.0.1:0'}\n", filepath.Join(dir, "data"))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "serve", config)
	says, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	hosts := make(chan string, 1)
	go func() { // all that it says is read, lest it wait for that
		defer close(hosts)
		for lines := bufio.NewScanner(says); lines.Scan(); {
			if m := listening.FindStringSubmatch(lines.Text()); m != nil {
				select {
				case hosts <- m[1]:
				default:
				}
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		for range hosts { // the pipe is read to its end before Wait closes it
		}
		_ = cmd.Wait()
	})
	select {
	case host, ok := <-hosts:
		if !ok {
			t.Fatal("docker-registry ended before it listened")
		}
		return host, true
	case <-time.After(2 * time.Minute):
		t.Fatal("docker-registry does not say where it listens")
	}
	return "", false
}
