// Command smtpsink runs the mail server for tests of package smtpsink until it is told to stop.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/oncemill/oncemill/internal/testenv/smtpsink"
)

func main() {
	var o smtpsink.Options
	flag.StringVar(&o.SMTPAddr, "smtp", "", "address for mail (default: a free port on 127.0.0.1)")
	flag.StringVar(&o.HTTPAddr, "http", "", "address of the HTTP interface (default: a free port on 127.0.0.1)")
	flag.BoolVar(&o.StartTLS, "starttls", false, "offer STARTTLS with a self-made certificate")
	flag.StringVar(&o.Username, "username", "", "demand this user name with AUTH PLAIN; the password is in SMTPSINK_PASSWORD")
	flag.BoolVar(&o.AbsorbRepeats, "absorb", false, "do not keep a second letter with the same Message-ID")
	flag.DurationVar(&o.Faults.Delay, "delay", 0, "wait between the body and the answer")
	flag.IntVar(&o.Faults.DropKept, "drop-kept", 0, "keep so many letters and drop the connection instead of answering (-1: all)")
	flag.IntVar(&o.Faults.DropLost, "drop-lost", 0, "drop the connection after so many bodies and do not keep them (-1: all)")
	flag.IntVar(&o.Faults.RefuseData, "refuse-data", 0, "answer 451 after so many bodies (-1: all)")
	flag.Func("refuse-recipient", `answer 550 to this recipient, "*" is all; may be repeated`, func(address string) error {
		o.Faults.RefuseRecipients = append(o.Faults.RefuseRecipients, address)
		return nil
	})
	flag.Parse()
	o.Password = os.Getenv("SMTPSINK_PASSWORD")

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "smtpsink:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o smtpsink.Options) error {
	sink, err := smtpsink.New(o)
	if err != nil {
		return err
	}
	fmt.Println("mail on", sink.Addr(), "- letters on", sink.URL()+"/letters")
	<-ctx.Done()
	return sink.Close()
}
