package system

import (
	"os"
	"testing"
)

// image is the test image: Debian's static busybox with a link for each applet, so that pods have a shell.
const image = "berth.test/busybox:1"

// testImages returns the archives with the images that the pods of the tests run.
func testImages(t *testing.T) []string {
	t.Helper()
	path := "../../bin/test/busybox.tar"
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v (make build-test makes it)", err)
	}
	return []string{path}
}
