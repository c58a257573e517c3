// App is what the tests run as a container and as a service: one word says how it behaves.
package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

func main() {
	fmt.Println("started", os.Args[1:])
	switch os.Args[1] {
	case "serve": // address, file: answers with the file as it is now
		listener, err := net.Listen("tcp", os.Args[2])
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		go http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			data, err := os.ReadFile(os.Args[3])
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			w.Write(data)
		}))
	case "exit":
		code, _ := strconv.Atoi(os.Args[2])
		fmt.Println("words before the end")
		os.Exit(code)
	case "test": // a file is there
		if _, err := os.Stat(os.Args[2]); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	select {
	case <-signals:
	case <-time.After(time.Hour):
	}
}
