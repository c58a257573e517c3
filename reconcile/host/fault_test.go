package host_test

const faultWord = "fault-host"

func faultMain([]string) {}
