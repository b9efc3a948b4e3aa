package cluster

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// maxFile bounds a file of credentials, in bytes: a bundle of all authorities that there are has a quarter of it.
const maxFile = 1 << 20

// readFile reads a file of credentials. What is no file is refused rather than waited for, as a named pipe would be.
func readFile(path string, flags int) ([]byte, os.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|flags, 0)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, st, fmt.Errorf("open %s: it is no file", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("read %s: it has more than %d bytes", path, maxFile)
	}
	return data, st, err
}
