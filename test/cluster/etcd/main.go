// Command etcd is etcd as its own module publishes it: what Kubernetes' own API server stores its objects in.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
